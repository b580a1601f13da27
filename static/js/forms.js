// Small helps for forms; all of them work without.
(() => {
  const zone = document.querySelector("select[data-guess]");
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone && here) {
    if (![...zone.options].some((option) => option.value === here)) zone.prepend(new Option(here.replaceAll("_", " "), here));
    zone.value = here;
  }

  // A quick choice replaces the number that was typed, and a number the quick choice.
  document.addEventListener("input", (event) => {
    const form = event.target.form;
    if (event.target.name === "duration_minutes" && form.elements.other_minutes) form.elements.other_minutes.value = "";
    if (event.target.name === "other_minutes" && event.target.value) {
      for (const choice of form.querySelectorAll("[name=duration_minutes]")) choice.checked = false;
    }
  });

  document.querySelector("[data-focus]")?.focus();
  document.addEventListener("submit", (event) => setTimeout(() => {
    if (!event.defaultPrevented) event.submitter?.setAttribute("aria-busy", "true");
  }));
  addEventListener("pageshow", () => document.querySelectorAll("[aria-busy]").forEach((button) => button.removeAttribute("aria-busy")));
})();
