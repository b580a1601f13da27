// Counts down to the deadline by the server's clock: a phone whose clock is wrong shows the same.
(() => {
  const navigation = performance.getEntriesByType("navigation")[0];
  // Counted from when the page was asked for, so that a slow line errs towards less time left.
  let requestedAt = performance.timeOrigin + (navigation ? navigation.requestStart : 0);
  let bases = new WeakMap();
  const said = new Set();
  let asked = 0;

  function serverNow(clock) {
    if (!bases.has(clock)) bases.set(clock, Number(clock.dataset.now) * 1000 - requestedAt);
    window.serverOffset = bases.get(clock);
    return Date.now() + bases.get(clock);
  }

  function digits(seconds) {
    const pad = (number) => String(number).padStart(2, "0");
    const hours = Math.floor(seconds / 3600);
    const rest = `${pad(Math.floor(seconds / 60) % 60)}:${pad(seconds % 60)}`;
    return hours ? `${hours}:${rest}` : rest;
  }

  function announce(clock, left) {
    for (const [limit, text] of [[60, "1 minute left."], [300, "5 minutes left."]]) {
      const key = `${clock.dataset.expiresAt}-${limit}`;
      if (left <= limit && left > limit - 10 && !said.has(key)) {
        said.add(key);
        document.getElementById("announce").textContent = text;
      }
    }
  }

  function show(clock) {
    const now = serverNow(clock);
    const [started, expires, escalates] = ["startedAt", "expiresAt", "escalatesAt"].map((name) => Number(clock.dataset[name]) * 1000);
    const grace = now >= expires;
    const left = Math.max(0, Math.ceil(((grace ? escalates : expires) - now) / 1000));
    const over = now >= escalates;
    clock.querySelector("[data-phase]").textContent = over ? "the alarm is starting" : grace ? "time's up: alarm starts in" : "time left";
    clock.querySelector("[data-digits]").textContent = digits(left);
    const part = grace ? (escalates - now) / (escalates - expires || 1) : (expires - now) / (expires - started);
    clock.querySelector(".left").setAttribute("stroke-dashoffset", 100 * (1 - Math.min(1, Math.max(0, part))));
    clock.classList.toggle("soon", !grace && left <= 300);
    clock.classList.toggle("up", grace);
    announce(clock, grace ? Infinity : left);
    if (over && Date.now() - asked > 2000) {
      asked = Date.now();
      document.dispatchEvent(new Event("refresh"));
    }
  }

  const tick = () => document.querySelectorAll("[data-countdown]").forEach(show);
  document.addEventListener("swapped", (event) => {
    requestedAt = event.detail.requestedAt;
    bases = new WeakMap();
    tick();
  });
  setInterval(tick, 250);
  tick();
})();
