// Small helps for forms; all of them work without.
(() => {
  const zone = document.querySelector("select[data-guess]");
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone && here) {
    if (![...zone.options].some((option) => option.value === here)) zone.prepend(new Option(here.replaceAll("_", " "), here));
    zone.value = here;
  }

  // A quick choice fills in the number.
  const show = (inside) => inside.querySelectorAll("[data-quick]").forEach((choices) => (choices.hidden = false));
  show(document);
  new MutationObserver(() => show(document)).observe(document.getElementById("main"), { childList: true });
  document.addEventListener("click", (event) => {
    const choices = event.target.closest("[data-quick]");
    if (choices && event.target.value) event.target.form.elements[choices.dataset.quick].value = event.target.value;
  });

  document.querySelector("[data-focus]")?.focus();
  document.addEventListener("submit", (event) => setTimeout(() => {
    if (!event.defaultPrevented) event.submitter?.setAttribute("aria-busy", "true");
  }));
  addEventListener("pageshow", () => document.querySelectorAll("[aria-busy]").forEach((button) => button.removeAttribute("aria-busy")));
})();
