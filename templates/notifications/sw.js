// Shows every push, whatever is in it, and tells the server that it was shown: only that counts as delivered.
const PLAIN = { title: "CasualMeet Safety", body: "There is news about somebody's safety. Tap to open it.", link: "/", tag: "", receipt: "" };
const RECEIPT_TRIES = [0, 2000, 8000];

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

function read(data) {
  const found = { ...PLAIN };
  try {
    const said = data.json();
    for (const name of Object.keys(found)) if (typeof said[name] === "string" && said[name]) found[name] = said[name];
  } catch { /* nothing in it, or garbage: something is shown all the same */ }
  return found;
}

// A push may only lead into this site.
function address(link) {
  try {
    const url = new URL(link, self.location.origin);
    if (url.origin === self.location.origin) return url.href;
  } catch { /* not an address */ }
  return self.location.origin + "/";
}

async function tell(receipt) {
  for (const wait of RECEIPT_TRIES) {
    if (wait) await new Promise((done) => setTimeout(done, wait));
    try {
      const answer = await fetch("/push/receipt", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ receipt }),
        credentials: "omit",
        keepalive: true,
      });
      if (answer.status < 500) return;
    } catch { /* no connection: once more */ }
  }
}

async function show(data) {
  const push = read(data);
  await self.registration.showNotification(push.title, {
    body: push.body,
    tag: push.tag,
    renotify: Boolean(push.tag),
    requireInteraction: true,
    data: { link: address(push.link) },
  });
  if (push.receipt) await tell(push.receipt);
}

self.addEventListener("push", (event) => event.waitUntil(show(event.data)));

async function open(link) {
  const windows = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const there = windows.find((client) => client.url === link);
  return there ? there.focus() : self.clients.openWindow(link);
}

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(open((event.notification.data || {}).link || self.location.origin + "/"));
});
