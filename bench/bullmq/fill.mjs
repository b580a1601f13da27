// Puts COUNT jobs into the paused queue and lets them go at once, as a commit does; says when that was.
// JOB is what all have in common, as JSON; NUMBERS is the prefix and the first of the phone numbers, "+4477 10000001".

import { Queue } from "bullmq";
import { Redis } from "ioredis";

const { QUEUE, REDIS_URL, COUNT, JOB, NUMBERS } = process.env;
const CHUNK = 1_000;
const job = JSON.parse(JOB);
const [prefix, first] = NUMBERS.split(" ");
const connection = new Redis(REDIS_URL, { maxRetriesPerRequest: null });
const queue = new Queue(QUEUE, {
  connection,
  defaultJobOptions: {
    attempts: 4,
    backoff: { type: "exponential", delay: 2_000 },
    removeOnComplete: { count: 1_000 },
    removeOnFail: { count: 5_000 },
  },
});

await queue.pause();
for (let start = 0; start < Number(COUNT); start += CHUNK) {
  const length = Math.min(CHUNK, Number(COUNT) - start);
  await queue.addBulk(
    Array.from({ length }, (_, i) => ({
      name: "digest",
      data: { ...job, fields: { ...job.fields, To: `${prefix}${Number(first) + start + i}` } },
    })),
  );
}
const released = Date.now() / 1000;
await queue.resume();
console.log(`released ${released}`);
await queue.close();
connection.disconnect();
