// Sends the phone's position while a timer is live; asks for it only after a tap.
(() => {
  const EVERY = 15000;
  let watch = null;
  let newest = null;
  let sentAt = 0;
  let sending = false;

  const box = () => document.querySelector("[data-position]");
  const remembered = () => sessionStorage.getItem("sharing");

  function say(text) {
    const status = box()?.querySelector("[data-share-status]");
    if (status) status.textContent = text;
  }

  function body(position) {
    const { latitude, longitude, accuracy } = position.coords;
    const age = Date.now() - position.timestamp;
    const found = { latitude, longitude, accuracy_m: accuracy };
    // Without a time it counts as taken now; the phone's clock alone is not to be trusted.
    if (window.serverOffset !== undefined) found.captured_at = new Date(Date.now() + window.serverOffset - age).toISOString();
    return found;
  }

  async function send() {
    const timer = box()?.dataset.position;
    const token = document.querySelector("[name=csrfmiddlewaretoken]")?.value;
    if (!timer) return stop();
    if (!newest || !token || sending || Date.now() - sentAt < EVERY) return;
    sending = true;
    const position = newest;
    try {
      const facts = body(position);
      if (navigator.getBattery) facts.battery_percent = Math.round((await navigator.getBattery()).level * 100);
      const answer = await fetch(`/api/timers/${timer}/positions`, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-CSRFToken": token },
        body: JSON.stringify(facts),
      });
      if (answer.status === 409 || answer.status === 404) return stop();
      if (!answer.ok) throw new Error(answer.status);
      sentAt = Date.now();
      if (newest === position) newest = null;
      say(`Position sent at ${new Date().toTimeString().slice(0, 5)}, accurate to ${Math.round(facts.accuracy_m)} m.`);
    } catch {
      say("Position not sent: no connection. Trying again.");
    } finally {
      sending = false;
    }
  }

  function stop() {
    if (watch !== null) navigator.geolocation.clearWatch(watch);
    watch = null;
    sessionStorage.removeItem("sharing");
    label();
  }

  function start() {
    if (watch !== null) return;
    sessionStorage.setItem("sharing", box().dataset.position);
    say("Looking for your position.");
    watch = navigator.geolocation.watchPosition(
      (position) => {
        newest = position;
        send();
      },
      (error) => {
        if (error.code !== error.PERMISSION_DENIED) return say("No position yet. Still looking.");
        stop();
        say("This phone doesn't let the page see its position. Allow it in the browser's settings.");
      },
      { enableHighAccuracy: true, maximumAge: 10000, timeout: 30000 },
    );
    label();
  }

  function label() {
    const button = box()?.querySelector("[data-share]");
    if (!button) return;
    button.hidden = false;
    button.textContent = watch === null ? "Share my position" : "Stop sharing my position";
    button.onclick = () => {
      if (watch === null) return start();
      stop();
      say("Your position is no longer sent.");
    };
  }

  async function setUp() {
    if (!navigator.geolocation || !box()) return;
    label();
    if (watch !== null || remembered() !== box().dataset.position || !navigator.permissions) return;
    const permission = await navigator.permissions.query({ name: "geolocation" });
    if (permission.state === "granted") start();
  }

  document.addEventListener("swapped", setUp);
  setInterval(send, 5000);
  setUp();
})();
