// Tells the server, once, that somebody looks at the alert: so it has reached them.
(() => {
  const LOOKED = 1000;
  const MOST_TRIES = 5;

  async function tell(tries) {
    const form = document.querySelector("form[data-opened]");
    if (!form) return;
    if (document.hidden) {
      document.addEventListener("visibilitychange", () => setTimeout(tell, LOOKED, tries), { once: true });
      return;
    }
    try {
      const answer = await fetch(form.dataset.opened, {
        method: "POST",
        headers: { "X-CSRFToken": form.elements.csrfmiddlewaretoken.value },
        keepalive: true,
      });
      if (answer.ok || answer.status < 500) return;
    } catch { /* no connection: again below */ }
    if (tries < MOST_TRIES) setTimeout(tell, 2000 * 2 ** tries, tries + 1);
  }

  setTimeout(tell, LOOKED, 1);
})();
