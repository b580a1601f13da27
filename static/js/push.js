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

  // One browser may be the contact of many: it is subscribed for all of them at once.
  function wantedByOthers(box) {
    try {
      return Object.keys(localStorage).some((name) => name.startsWith("push:") && name !== `push:${box.dataset.pushOwner}` && localStorage.getItem(name) === "on");
    } catch {
      return true;
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

  function show(box, isOn) {
    box.hidden = false;
    box.querySelector("[data-push-button]").hidden = isOn;
    box.querySelector("[data-push-off]").hidden = !isOn;
    box.querySelector(".note")?.remove();
    say(box, isOn ? box.dataset.pushIsOn : box.dataset.pushIsOff);
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

  async function post(address, fields) {
    const token = document.querySelector("[name=csrfmiddlewaretoken]");
    const answer = await fetch(address, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...(token ? { "X-CSRFToken": token.value } : {}) },
      body: JSON.stringify(fields),
    });
    if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail || answer.status);
  }

  async function send(box, made) {
    const { endpoint, keys } = made.toJSON();
    await post(box.dataset.pushUrl, { kind: "webpush", endpoint, keys });
    wanted(box, "on");
  }

  async function current() {
    const worker = await navigator.serviceWorker.getRegistration("/");
    return worker && worker.pushManager.getSubscription();
  }

  async function turnOff(box) {
    const button = box.querySelector("[data-push-off]");
    button.setAttribute("aria-busy", "true");
    try {
      const made = await current();
      // The server first: once it is told, no page visit brings the pushes back.
      if (made) await post(`${box.dataset.pushUrl}/off`, { endpoint: made.endpoint });
      wanted(box, "off");
      if (made && !wantedByOthers(box)) await made.unsubscribe();
      show(box, false);
      box.querySelector("[data-push-status]").focus();
    } catch (error) {
      say(box, `${box.dataset.pushFailed} (${error.message})`);
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  async function turnOn(box) {
    const button = box.querySelector("[data-push-button]");
    button.setAttribute("aria-busy", "true");
    say(box, "…");
    try {
      if ((await Notification.requestPermission()) !== "granted") {
        say(box, box.dataset.pushBlocked);
        return;
      }
      await send(box, await subscription(box.dataset.push));
      show(box, true);
      box.querySelector("[data-push-status]").focus();
    } catch (error) {
      say(box, `${box.dataset.pushFailed} (${error.message})`);
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  // Browsers renew their endpoints now and then: a visit tells the new one.
  async function check(box) {
    if (Notification.permission !== "granted") return;
    try {
      const made = await current();
      if (made && fits(made, box.dataset.push) && (await isKnown(box, made.endpoint))) return show(box, true);
      if (!wanted(box)) return;
      await send(box, await subscription(box.dataset.push));
      show(box, true);
    } catch { /* the button stays */ }
  }

  function setUp() {
    if (!supported) return;
    for (const box of document.querySelectorAll("[data-push]:not([data-ready])")) {
      box.dataset.ready = "yes";
      box.hidden = false;
      box.querySelector("[data-push-button]").addEventListener("click", () => turnOn(box));
      box.querySelector("[data-push-off]").addEventListener("click", () => turnOff(box));
      check(box);
    }
  }

  document.addEventListener("swapped", setUp);
  setUp();
})();
