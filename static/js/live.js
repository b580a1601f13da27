// Keeps the page true without a reload: any event, gap or silence makes it fetch itself and swap <main>.
(() => {
  const mode = document.body.dataset.live;
  if (!mode) return;
  const url = document.body.dataset.url || location.pathname;
  const main = document.getElementById("main");
  const POLL = (Number(document.body.dataset.poll) || 10) * 1000;
  const SILENCE = 50000;
  const RESTART_GRACE = 10000;
  let shown = comparable(main);
  let pointerDown = false;
  let leaving = false;
  let running = false;
  let again = false;
  let quietUntil = 0;

  // Tokens and ages of the page's own making differ each time and mean nothing.
  function comparable(node) {
    return node.innerHTML
      .replace(/(name="(?:csrfmiddlewaretoken|key)" value=")[^"]*/g, "$1")
      .replace(/data-now="[^"]*"/g, "");
  }

  function keyOf(node) {
    const text = /^(BUTTON|SUMMARY)$/.test(node.tagName) ? node.textContent : "";
    const value = node.type === "radio" || node.tagName === "BUTTON" ? node.value : "";
    const form = node.form ? node.form.getAttribute("action") : "";
    return [node.tagName, node.id, node.name, value, form, node.getAttribute("href"), text].join("|");
  }

  function twin(node, inside) {
    const key = keyOf(node);
    return [...inside.querySelectorAll(node.tagName)].find((other) => keyOf(other) === key);
  }

  function carryOver(fresh) {
    for (const old of main.querySelectorAll("[data-keep]")) {
      const place = [...fresh.querySelectorAll("[data-keep]")].find((node) => node.dataset.keep === old.dataset.keep);
      if (place) place.replaceWith(old);
    }
    for (const old of main.querySelectorAll("input:not([type=hidden]), textarea, select")) {
      const same = twin(old, fresh);
      if (!same) continue;
      if (old.type === "checkbox" || old.type === "radio") {
        if (old.checked !== old.defaultChecked) same.checked = old.checked;
      } else if (old.tagName === "SELECT" || old.value !== old.defaultValue) same.value = old.value;
    }
    for (const old of main.querySelectorAll("details[id]")) {
      const same = fresh.querySelector(`#${CSS.escape(old.id)}`);
      if (same) same.open = old.open;
    }
  }

  function setClock(fresh, requestedAt) {
    const [old, same] = [main, fresh].map((place) => place.querySelector("[data-now]"));
    if (!old || !same) return;
    old.dataset.now = same.dataset.now;
    document.dispatchEvent(new CustomEvent("swapped", { detail: { requestedAt } }));
  }

  function swap(page, requestedAt) {
    const fresh = page.getElementById("main");
    if (!fresh || !page.body.dataset.live) {
      // Signed out meanwhile, or another kind of page.
      leaving = true;
      location.assign(url);
      return;
    }
    const changed = fresh.dataset.state !== main.dataset.state;
    const next = comparable(fresh);
    const unread = page.getElementById("unread");
    if (unread && document.getElementById("unread")) document.getElementById("unread").replaceChildren(...unread.childNodes);
    // What was refused stays on the page until something bigger happens.
    if (next === shown || (main.querySelector(".summary, .error") && !changed)) {
      setClock(fresh, requestedAt);
      return;
    }
    shown = next;
    const focused = main.contains(document.activeElement) && document.activeElement;
    const range = focused && "selectionStart" in focused ? [focused.selectionStart, focused.selectionEnd] : null;
    const top = window.scrollY;
    const kept = focused && focused.closest("[data-keep]");
    carryOver(fresh);
    main.replaceChildren(...fresh.childNodes);
    main.dataset.state = fresh.dataset.state || "";
    document.title = page.title;
    const same = focused && (kept && main.contains(focused) ? focused : twin(focused, main));
    if (same) {
      same.focus({ preventScroll: true });
      try {
        if (range && range[0] !== null) same.setSelectionRange(...range);
      } catch { /* not a text field */ }
    } else if (focused) main.focus({ preventScroll: true });
    window.scrollTo(0, changed ? 0 : top);
    if (changed) {
      document.getElementById("announce").textContent = main.dataset.state;
      document.getElementById("notes")?.replaceChildren();
    }
    document.dispatchEvent(new CustomEvent("swapped", { detail: { requestedAt } }));
  }

  const inTheWay = () => pointerDown || document.body.dataset.busy;

  async function refresh() {
    if (leaving) return;
    if (running) {
      again = true;
      return;
    }
    running = true;
    again = false;
    try {
      const requestedAt = Date.now();
      const answer = await fetch(url, {
        headers: { "X-Live": "1" },
        cache: "no-store",
        signal: AbortSignal.timeout ? AbortSignal.timeout(15000) : undefined,
      });
      if (answer.redirected || answer.status === 404) {
        leaving = true;
        location.assign(url);
        return;
      }
      if (!answer.ok) throw new Error(answer.status);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      say("");
      // A button must not be swapped away under a finger.
      for (let waits = 0; inTheWay() && waits < 100; waits++) await new Promise((done) => setTimeout(done, 200));
      if (!leaving && !inTheWay()) swap(page, requestedAt);
    } catch {
      // During a restart that was announced the page is a few seconds old, which is no news.
      if (Date.now() > quietUntil) say(document.getElementById("connection").dataset.lost);
    } finally {
      running = false;
      if (again) setTimeout(refresh, 50);
    }
  }

  function say(text) {
    const line = document.getElementById("connection");
    if (line.textContent !== text) line.textContent = text;
  }

  addEventListener("pointerdown", () => (pointerDown = true), true);
  for (const end of ["pointerup", "pointercancel"]) {
    addEventListener(end, () => setTimeout(() => (pointerDown = false), 350), true);
  }
  document.addEventListener("submit", (event) => setTimeout(() => (leaving = !event.defaultPrevented)));
  addEventListener("pageshow", (event) => {
    leaving = false;
    if (event.persisted) refresh();
  });
  document.addEventListener("refresh", refresh);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
  addEventListener("online", refresh);

  const jitter = (wait) => wait * (0.75 + Math.random() / 2);
  const loop = (wait, wanted) => setTimeout(async () => {
    if (!document.hidden && wanted()) await refresh();
    loop(wait, wanted);
  }, jitter(wait));

  if (mode === "poll") {
    loop(POLL, () => true);
    return;
  }

  let socket = null;
  let failures = 0;
  let lastSeq = 0;
  let lastSnapshot = "";
  let heardAt = 0;
  let retry = 0;
  let comeBackIn = 0;

  function connect() {
    clearTimeout(retry);
    socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/person/`);
    lastSeq = 0;
    heardAt = Date.now();
    socket.onmessage = (message) => {
      heardAt = Date.now();
      failures = 0;
      const event = JSON.parse(message.data);
      if (event.type === "restart") {
        // Each client is told another moment, so that they don't all come at once.
        comeBackIn = event.retry_ms;
        quietUntil = Date.now() + comeBackIn + RESTART_GRACE;
        return;
      }
      const gap = event.seq !== lastSeq + 1;
      lastSeq = event.seq;
      if (gap) socket.send(JSON.stringify({ type: "snapshot" }));
      const snapshot = event.type === "snapshot" ? JSON.stringify(event.data) : "";
      if (!snapshot || snapshot !== lastSnapshot || gap) refresh();
      lastSnapshot = snapshot;
    };
    socket.onclose = () => {
      socket = null;
      lastSnapshot = "";
      failures += comeBackIn ? 0 : 1;
      retry = setTimeout(connect, comeBackIn || jitter(Math.min(30000, 500 * 2 ** failures)));
      comeBackIn = 0;
    };
  }

  setInterval(() => {
    if (socket && socket.readyState === WebSocket.OPEN && Date.now() - heardAt > SILENCE) socket.close();
  }, 5000);
  addEventListener("online", () => {
    failures = 0;
    if (!socket) connect();
  });
  loop(POLL, () => !socket || socket.readyState !== WebSocket.OPEN);
  connect();
})();
