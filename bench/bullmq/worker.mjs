// One BullMQ worker process that makes the dispatcher's calls: QUEUE, REDIS_URL, CARRIER_URL, CONCURRENCY.

import { Worker } from "bullmq";
import { Redis } from "ioredis";
import { Pool } from "undici";

const { QUEUE, REDIS_URL, CARRIER_URL, CONCURRENCY } = process.env;
const concurrency = Number(CONCURRENCY);
const connection = new Redis(REDIS_URL, { maxRetriesPerRequest: null });
const carrier = new Pool(CARRIER_URL, { connections: concurrency, pipelining: 1, keepAliveTimeout: 45_000 });

async function send(job) {
  const { path, authorization, fields } = job.data;
  const { statusCode, body } = await carrier.request({
    method: "POST",
    path,
    headers: { authorization, "content-type": "application/x-www-form-urlencoded", accept: "application/json" },
    body: new URLSearchParams(fields).toString(),
    headersTimeout: 8_000,
    bodyTimeout: 8_000,
  });
  const answer = await body.json();
  if (statusCode !== 201) {
    throw new Error(`${statusCode}: ${answer.code}`);
  }
  return answer.sid;
}

const worker = new Worker(QUEUE, send, { connection, concurrency });
worker.on("error", (error) => console.error(`ERROR ${error}`));
worker.on("failed", (_job, error) => console.error(`ERROR ${error}`));
await worker.waitUntilReady();
console.log("ready");

process.on("SIGTERM", async () => {
  await worker.close();
  await carrier.close();
  connection.disconnect();
});
