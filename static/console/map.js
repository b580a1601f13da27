// The map of an incident: their phone, how exact that is, and the planned place. It outlives the swaps of the live
// part: the one map element moves into each new slot, and its markers move with the position.
(() => {
  "use strict";

  const live = document.getElementById("live");
  const L = window.L;
  if (!live || !L) return;

  const PHONE = { radius: 9, weight: 3, color: "#fff", fillColor: "#ba2121", fillOpacity: 1 };
  const PLANNED = { radius: 7, weight: 3, color: "#fff", fillColor: "#417690", fillOpacity: 1 };
  const AROUND = { weight: 1, color: "#ba2121", fillColor: "#ba2121", fillOpacity: 0.12, interactive: false };
  const CLOSEST_ZOOM = 16;

  const element = document.createElement("div");
  element.className = "map";
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", "Map; the coordinates are in the text above");
  let map = null;
  let layers = null;
  let shown = "";

  function point(text) {
    return text ? text.split(",").map(Number) : null;
  }

  function start(tiles) {
    map = L.map(element, { attributionControl: Boolean(tiles), zoomAnimation: false, fadeAnimation: false });
    map.attributionControl?.setPrefix("");
    L.control.scale({ imperial: false }).addTo(map);
    if (tiles) L.tileLayer(tiles, { maxZoom: 19, attribution: "© OpenStreetMap contributors" }).addTo(map);
    layers = L.layerGroup().addTo(map);
  }

  function draw({ position, planned, accuracy }) {
    layers.clearLayers();
    const corners = [];
    if (point(planned)) {
      L.circleMarker(point(planned), PLANNED).bindTooltip("Planned place").addTo(layers);
      corners.push(point(planned));
    }
    if (point(position)) {
      const metres = Number(accuracy);
      if (metres > 0) {
        const around = L.circle(point(position), { radius: metres, ...AROUND }).addTo(layers);
        corners.push(around.getBounds().getSouthWest(), around.getBounds().getNorthEast());
      }
      L.circleMarker(point(position), PHONE).bindTooltip("Their phone").addTo(layers);
      corners.push(point(position));
    }
    map.fitBounds(L.latLngBounds(corners), { maxZoom: CLOSEST_ZOOM, padding: [30, 30], animate: false });
  }

  function place() {
    const slot = document.getElementById("map-slot");
    if (!slot) return;
    slot.append(element);
    if (!map) {
      start(slot.dataset.tiles);
      // Leaflet's circles need a view before they can tell their bounds.
      map.setView(point(slot.dataset.position || slot.dataset.planned), CLOSEST_ZOOM);
    }
    map.invalidateSize({ animate: false });
    const now = JSON.stringify(slot.dataset);
    if (now === shown) return;
    shown = now;
    draw(slot.dataset);
  }

  live.addEventListener("console:swapped", place);
  place();
})();
