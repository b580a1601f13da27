// Notifications in this browser, asked for by a tap. Without support, or without JavaScript, nothing is offered.
(() => {
  const supported = "serviceWorker" in navigator && "PushManager" in window && "Notification" in window;
  const decoded = (text) => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));

  // What this browser was told to do, for whom; the server knows what holds.
  function wanted(box, value) {
    try {
      if (value) localStorage.setItem(`push:${box.dataset.pushOwner}`, value);
      return localStorage.getItem(`push:${box.dataset.pushOwner}`) === "on";
    } catch {
      return false;
    }
  }

  async function isKnown(box, endpoint) {
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(endpoint)));
    const text = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    return box.dataset.pushKnown.split(" ").includes(text);
  }

  function say(box, text) {
    box.querySelector("[data-push-status]").textContent = text;
  }

  function on(box) {
    box.hidden = false;
    box.querySelector("[data-push-button]").hidden = true;
    box.querySelector(".note")?.remove();
    say(box, "On: this browser shows a notification too. To end it, block notifications for this site in the browser's settings.");
  }

  function fits(made, key) {
    const own = made.options.applicationServerKey;
    return Boolean(own) && String(new Uint8Array(own)) === String(decoded(key));
  }

  async function subscription(key) {
    const worker = await navigator.serviceWorker.register("/sw.js");
    await navigator.serviceWorker.ready;
    const old = await worker.pushManager.getSubscription();
    if (old && fits(old, key)) return old;
    // Made with another key of this site: its pushes would be refused.
    if (old) await old.unsubscribe();
    return worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: decoded(key) });
  }

  async function send(box, made) {
    const { endpoint, keys } = made.toJSON();
    const token = document.querySelector("[name=csrfmiddlewaretoken]");
    const answer = await fetch(box.dataset.pushUrl, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...(token ? { "X-CSRFToken": token.value } : {}) },
      body: JSON.stringify({ kind: "webpush", endpoint, keys }),
    });
    if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail || answer.status);
    wanted(box, "on");
  }

  async function turnOn(box) {
    const button = box.querySelector("[data-push-button]");
    button.setAttribute("aria-busy", "true");
    say(box, "One moment.");
    try {
      if ((await Notification.requestPermission()) !== "granted") {
        say(box, "This browser doesn't let the site show notifications. Allow them in its settings and try again.");
        return;
      }
      await send(box, await subscription(box.dataset.push));
      on(box);
      box.querySelector("[data-push-status]").focus();
    } catch (error) {
      say(box, `That did not work: ${error.message}. You are still alerted by text.`);
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  // Browsers renew their endpoints now and then: a visit tells the new one.
  async function check(box) {
    if (Notification.permission !== "granted") return;
    try {
      const worker = await navigator.serviceWorker.getRegistration("/");
      const made = worker && (await worker.pushManager.getSubscription());
      if (made && fits(made, box.dataset.push) && (await isKnown(box, made.endpoint))) return on(box);
      if (!wanted(box)) return;
      await send(box, await subscription(box.dataset.push));
      on(box);
    } catch { /* the button stays */ }
  }

  function setUp() {
    if (!supported) return;
    for (const box of document.querySelectorAll("[data-push]:not([data-ready])")) {
      box.dataset.ready = "yes";
      box.hidden = false;
      box.querySelector("[data-push-button]").addEventListener("click", () => turnOn(box));
      check(box);
    }
  }

  document.addEventListener("swapped", setUp);
  setUp();
})();
