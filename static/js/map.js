// The alert page's map. The text above it says the same; so Leaflet is loaded only now, and may fail.
(() => {
  const pair = (text) => text.split(",").map(Number);

  function load(box) {
    return new Promise((done, failed) => {
      if (window.L) return done();
      const style = document.createElement("link");
      style.rel = "stylesheet";
      style.href = box.dataset.style;
      const script = document.createElement("script");
      script.src = box.dataset.script;
      script.onload = done;
      script.onerror = failed;
      document.head.prepend(style);
      document.head.append(script);
    });
  }

  function draw(box) {
    const tiles = box.dataset.tiles;
    box.hidden = false;
    box.classList.toggle("sketch", !tiles);
    const help = document.querySelector("[data-map-help]");
    if (help) help.hidden = false;
    const map = L.map(box, { attributionControl: Boolean(tiles), scrollWheelZoom: false });
    if (tiles) L.tileLayer(tiles, { maxZoom: 19, attribution: /openstreetmap/.test(tiles) ? "© OpenStreetMap contributors" : "" }).addTo(map);
    L.control.scale({ imperial: false }).addTo(map);
    const bounds = L.latLngBounds([]);
    if (box.dataset.planned) {
      const planned = pair(box.dataset.planned);
      L.circleMarker(planned, { radius: 8, className: "map-planned" }).addTo(map).bindTooltip(box.dataset.plannedLabel, { permanent: true, direction: "top" });
      bounds.extend(planned);
    }
    if (box.dataset.point) {
      const point = pair(box.dataset.point);
      const accuracy = Math.max(10, Number(box.dataset.accuracy) || 10);
      L.circle(point, { radius: accuracy, className: "map-accuracy" }).addTo(map);
      L.circleMarker(point, { radius: 8, className: "map-point" }).addTo(map).bindTooltip(box.dataset.pointLabel, { permanent: true, direction: "bottom" });
      bounds.extend(L.latLng(point).toBounds(accuracy * 2));
    }
    map.fitBounds(bounds.pad(0.4), { maxZoom: 17, animate: false });
  }

  async function setUp() {
    const box = document.querySelector("[data-map]");
    if (!box || box.dataset.ready) return;
    box.dataset.ready = "yes";
    try {
      await load(box);
      draw(box);
    } catch {
      delete box.dataset.ready;
    }
  }

  document.addEventListener("swapped", setUp);
  setUp();
})();
