// Keeps a page of the console up to date: fetches its fragment again at every event of the moderators' socket, and
// every 10 s in any case. The socket only says that something changed; what is shown always comes from the fragment,
// so a lost event costs seconds and never an incident.
(() => {
  "use strict";

  const POLL_MS = 10_000;
  const FETCH_TIMEOUT_MS = 8_000;
  // Events come in bursts (one per text that a carrier takes): never more than one fetch in this time.
  const FETCH_GAP_MS = 300;
  // The server sends a snapshot every 20 s; after this long a silent socket is a dead one.
  const SILENCE_MS = 50_000;
  const RETRY_MS = 1_000;
  const RETRY_MOST_MS = 30_000;
  // After a restart that the server announced: no alarm about the connection for so long.
  const RESTART_GRACE_MS = 10_000;
  const FORBIDDEN = 4403;

  const live = document.getElementById("live");
  if (!live) return;
  const connection = document.getElementById("connection");
  const announcer = document.getElementById("announcer");
  const baseTitle = document.title;

  let clockOffset = Number(live.dataset.now) - Date.now();
  // As the browser writes it out, before the ages are filled in: the first fetch then replaces nothing without need.
  let shownHtml = live.innerHTML.trim();
  let shownAt = Date.now();
  let fetching = false;
  let wanted = false;
  let lastFetch = 0;
  let unreachable = false;
  let stopped = false;
  let socket = null;
  let socketOpen = false;
  let attempts = 0;
  let retryTimer = 0;
  let silenceTimer = 0;
  let comeBackIn = 0;
  let quietUntil = 0;

  // What is shown

  function inWords(seconds) {
    if (seconds < 60) return `${seconds} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 10) return `${minutes} min ${String(seconds % 60).padStart(2, "0")} s`;
    if (minutes < 60) return `${minutes} min`;
    if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
    return `${Math.floor(minutes / 1440)} days`;
  }

  function tick() {
    const now = Date.now() + clockOffset;
    for (const element of document.querySelectorAll("[data-ago]")) {
      const seconds = Math.max(0, Math.floor((now - Date.parse(element.dataset.ago)) / 1000));
      const text = `${inWords(seconds)} ago`;
      if (element.textContent !== text) element.textContent = text;
    }
    for (const element of document.querySelectorAll("[data-until]")) {
      const seconds = Math.max(0, Math.ceil((Date.parse(element.dataset.until) - now) / 1000));
      const text = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
      if (element.textContent !== text) element.textContent = text;
    }
    if (!stopped && unreachable) showConnection();
  }

  function showTitle() {
    const count = Number(live.querySelector("[data-active]")?.dataset.active ?? 0);
    document.title = count ? `(${count}) ${baseTitle}` : baseTitle;
  }

  function showConnection() {
    let state = "live";
    let text = "Live";
    if (unreachable) {
      state = "offline";
      text = `No connection. What you see is ${inWords(Math.floor((Date.now() - shownAt) / 1000))} old`;
    } else if (!socketOpen) {
      state = attempts ? "polling" : "connecting";
      text = attempts ? "Reconnecting… polling every 10 s" : "Connecting…";
    }
    if (connection.dataset.state === state && connection.textContent === text) return;
    // Only a change of state is read out, not each second of "… old".
    connection.setAttribute("aria-live", connection.dataset.state === state ? "off" : "polite");
    connection.dataset.state = state;
    connection.textContent = text;
  }

  function marked(attribute) {
    return new Map([...live.querySelectorAll(`[data-${attribute}]`)].map((row) => [row.dataset[attribute], row]));
  }

  function announceChanges(before) {
    const said = [];
    for (const [id, row] of marked("incident")) {
      if (before.incidents.has(id)) continue;
      row.classList.add("new");
      said.push(`New incident ${row.dataset.announce}.`);
    }
    const resolved = marked("resolved");
    for (const [id, row] of before.incidents) {
      if (resolved.has(id)) said.push(`Resolved: ${row.dataset.announce}.`);
    }
    for (const [id, row] of marked("alarm")) {
      if (!before.alarms.has(id)) said.push(row.dataset.announce);
    }
    if (said.length) announcer.textContent = said.join(" ");
  }

  function swap(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    const written = template.innerHTML.trim();
    if (written === shownHtml) return;
    const before = { incidents: marked("incident"), alarms: marked("alarm") };
    const open = [...live.querySelectorAll("details[id][open]")].map((details) => details.id);
    const focused = live.contains(document.activeElement) ? document.activeElement.id : "";
    live.replaceChildren(template.content);
    shownHtml = written;
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    announceChanges(before);
    showTitle();
    tick();
    live.dispatchEvent(new Event("console:swapped"));
  }

  // Fetching

  function refresh() {
    if (stopped) return;
    wanted = true;
    if (fetching) return;
    fetching = true;
    setTimeout(load, Math.max(0, lastFetch + FETCH_GAP_MS - Date.now()));
  }

  async function load() {
    wanted = false;
    lastFetch = Date.now();
    try {
      const response = await fetch(live.dataset.fragment, {
        credentials: "same-origin",
        cache: "no-store",
        redirect: "error",
        signal: AbortSignal.timeout(FETCH_TIMEOUT_MS),
      });
      if (response.status === 403) {
        stop();
        return;
      }
      if (!response.ok) throw new Error(`HTTP ${response.status}`);
      const html = await response.text();
      if (stopped) return;
      clockOffset = Number(response.headers.get("X-Server-Now")) - Date.now();
      shownAt = Date.now();
      unreachable = false;
      swap(html);
    } catch (error) {
      unreachable = Date.now() > quietUntil;
    } finally {
      fetching = false;
      if (!stopped) showConnection();
    }
    if (wanted) refresh();
  }

  function stop() {
    stopped = true;
    clearTimeout(retryTimer);
    clearTimeout(silenceTimer);
    socket?.close();
    // What was shown is about people in danger: it does not stay on a screen that may no longer show it.
    live.replaceChildren();
    document.title = baseTitle;
    connection.dataset.state = "gone";
    connection.textContent = "Not connected";
    document.getElementById("no-access").hidden = false;
    announcer.textContent = "You no longer have access.";
  }

  // The socket

  function connect() {
    clearTimeout(retryTimer);
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const mine = new WebSocket(`${scheme}://${location.host}/ws/moderation/`);
    socket = mine;
    let lastSeq = 0;
    watchSilence(mine);
    mine.onopen = () => {
      if (socket === mine) watchSilence(mine);
    };
    mine.onmessage = (message) => {
      if (socket !== mine) return;
      let event;
      try {
        event = JSON.parse(message.data);
      } catch {
        return;
      }
      watchSilence(mine);
      if (event.type === "restart") {
        // Each client is told another moment, so that they don't all come at once.
        comeBackIn = event.retry_ms;
        quietUntil = Date.now() + comeBackIn + RESTART_GRACE_MS;
        return;
      }
      // The fragment is the whole state, so a gap needs nothing more than any other event; the snapshot that a
      // socket starts with covers what was missed before it.
      if (event.seq !== lastSeq + 1) mine.send(JSON.stringify({ type: "snapshot" }));
      lastSeq = event.seq;
      attempts = 0;
      socketOpen = true;
      showConnection();
      refresh();
    };
    mine.onclose = (closing) => {
      if (socket === mine) lost(closing.code);
    };
  }

  function lost(code) {
    clearTimeout(silenceTimer);
    socketOpen = false;
    socket = null;
    if (stopped) return;
    if (code === FORBIDDEN) {
      stop();
      return;
    }
    if (comeBackIn) {
      retryTimer = setTimeout(connect, comeBackIn);
      comeBackIn = 0;
      showConnection();
      return;
    }
    attempts += 1;
    showConnection();
    // Also tells whether we may still watch: a refused handshake looks like any other lost connection.
    refresh();
    const wait = Math.min(RETRY_MOST_MS, RETRY_MS * 2 ** (attempts - 1));
    retryTimer = setTimeout(connect, wait * (0.5 + Math.random() / 2));
  }

  function watchSilence(mine) {
    clearTimeout(silenceTimer);
    silenceTimer = setTimeout(() => {
      mine.close();
      // A half-dead connection may take minutes to confirm the close.
      if (socket === mine) lost(0);
    }, SILENCE_MS);
  }

  function wakeUp() {
    if (stopped || document.hidden) return;
    refresh();
    if (!socket) {
      attempts = Math.min(attempts, 1);
      connect();
    }
  }

  addEventListener("online", wakeUp);
  document.addEventListener("visibilitychange", wakeUp);
  addEventListener("pageshow", (event) => {
    if (event.persisted) wakeUp();
  });
  setInterval(tick, 1_000);
  setInterval(refresh, POLL_MS);
  showTitle();
  showConnection();
  tick();
  connect();
})();
