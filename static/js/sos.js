// SOS: hold 1.5 s, or confirm without holding; then 5 s to cancel; then it is sent until the server has it.
(() => {
  const HOLD = 1500;
  const COUNT = 5;
  const POSITION_WAIT = 2000;
  let open = false;

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function dialog(title, text, ...buttons) {
    const heading = element("h2", { id: "sos-title" }, title);
    const line = element("p", { id: "sos-text", role: "status" }, text);
    const made = element("dialog", { class: "sos-dialog", role: "alertdialog", "aria-labelledby": "sos-title", "aria-describedby": "sos-text" }, heading, line, ...buttons);
    document.body.append(made);
    document.body.dataset.busy = "sos";
    open = true;
    made.addEventListener("close", () => {
      made.remove();
      open = false;
      delete document.body.dataset.busy;
    });
    made.showModal();
    return { made, heading, line };
  }

  function findPosition() {
    return new Promise((done) => {
      if (!navigator.geolocation) return done(null);
      navigator.geolocation.getCurrentPosition(done, () => done(null), { enableHighAccuracy: true, timeout: 7000, maximumAge: 30000 });
    });
  }

  const wait = (time) => new Promise((done) => setTimeout(done, time));

  async function post(form) {
    const answer = await fetch(form.action, { method: "POST", body: new FormData(form), headers: { "X-CSRFToken": form.elements.csrfmiddlewaretoken.value } });
    if (answer.status === 403) {
      // Signed in anew in another tab: the page's token is old.
      const page = new DOMParser().parseFromString(await (await fetch(form.action)).text(), "text/html");
      const token = page.querySelector("[name=csrfmiddlewaretoken]");
      if (token) form.elements.csrfmiddlewaretoken.value = token.value;
    }
    if (!answer.ok) throw new Error(answer.status);
    return answer.url;
  }

  async function send(form, position, parts) {
    const call = element("a", { class: "button danger wide", href: "tel:112" }, "Call 112");
    const stop = element("button", { class: "second wide", type: "button" }, "Stop trying");
    parts.made.replaceChildren(parts.heading, parts.line, call);
    parts.heading.textContent = "Sending SOS";
    parts.line.textContent = "One moment.";
    let stopped = false;
    stop.onclick = () => {
      stopped = true;
      parts.made.close();
    };
    parts.made.oncancel = (event) => event.preventDefault();
    const fill = (found) => {
      if (!found) return;
      form.elements.latitude.value = found.coords.latitude;
      form.elements.longitude.value = found.coords.longitude;
      form.elements.accuracy_m.value = found.coords.accuracy;
    };
    position.then(fill);
    await Promise.race([position, wait(POSITION_WAIT)]);
    for (let tries = 0; !stopped; tries++) {
      try {
        location.assign(await post(form));
        return;
      } catch {
        parts.heading.textContent = "Not sent yet";
        parts.line.textContent = "No connection. Trying again and again. If you can, call 112.";
        if (!stop.isConnected) parts.made.append(stop);
        await wait(Math.min(5000, 1000 + tries * 500));
      }
    }
  }

  function countDown(form) {
    const number = element("p", { class: "sos-number", "aria-hidden": "true" }, String(COUNT));
    const cancel = element("button", { class: "wide cancel", type: "button", autofocus: "" }, "Cancel");
    const now = element("button", { class: "second wide", type: "button" }, "Send now");
    const parts = dialog("SOS in 5 seconds", "Your contacts and the moderators will be alerted.", number, cancel, now);
    const position = findPosition();
    const until = performance.now() + COUNT * 1000;
    const timer = setInterval(() => {
      const left = Math.ceil((until - performance.now()) / 1000);
      number.textContent = String(Math.max(left, 0));
      if (left <= 0) go();
    }, 100);
    const go = () => {
      clearInterval(timer);
      send(form, position, parts);
    };
    now.onclick = go;
    cancel.onclick = () => parts.made.close();
    parts.made.addEventListener("close", () => {
      clearInterval(timer);
      document.getElementById("announce").textContent = "SOS is not sent.";
    });
  }

  function confirm(form) {
    const yes = element("button", { class: "danger wide", type: "button" }, "Send SOS");
    const no = element("button", { class: "second wide", type: "button", autofocus: "" }, "No, go back");
    const { made } = dialog("Raise the alarm?", "You then have 5 seconds to cancel.", yes, no);
    no.onclick = () => made.close();
    yes.onclick = () => {
      made.addEventListener("close", () => countDown(form), { once: true });
      made.close();
    };
  }

  function holdable(button, form) {
    let since = 0;
    const end = () => {
      since = 0;
      button.style.setProperty("--held", 0);
      button.classList.remove("held");
      if (!open) delete document.body.dataset.busy;
    };
    const step = () => {
      if (!since) return;
      const part = (performance.now() - since) / HOLD;
      button.style.setProperty("--held", Math.min(1, part));
      if (part < 1) return requestAnimationFrame(step);
      end();
      countDown(form);
    };
    const begin = () => {
      if (since || open) return;
      document.body.dataset.busy = "sos";
      button.classList.add("held");
      since = performance.now();
      step();
    };
    button.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      button.setPointerCapture(event.pointerId);
      begin();
    });
    for (const kind of ["pointerup", "pointercancel", "blur", "keyup"]) button.addEventListener(kind, end);
    button.addEventListener("keydown", (event) => {
      if (event.key !== " " && event.key !== "Enter") return;
      event.preventDefault();
      begin();
    });
    button.addEventListener("contextmenu", (event) => event.preventDefault());
    button.addEventListener("click", () => {
      document.getElementById("announce").textContent = "Hold the button for one and a half seconds, or use SOS without holding.";
    });
    button.hidden = false;
  }

  function setUp() {
    for (const form of document.querySelectorAll("[data-sos]:not([data-ready])")) {
      form.dataset.ready = "yes";
      const hold = form.querySelector("[data-sos-hold]");
      if (hold) holdable(hold, form);
      form.querySelector("[data-sos-plain]")?.addEventListener("click", (event) => {
        event.preventDefault();
        confirm(form);
      });
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        if (!open) send(form, findPosition(), dialog("Sending SOS", "One moment."));
      });
    }
  }

  document.addEventListener("swapped", setUp);
  setUp();
})();
