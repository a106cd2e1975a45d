"use strict";
(() => {
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = Number(text);
    return text !== "" && Number.isFinite(number) ? number : text.toLowerCase();
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  for (const table of document.querySelectorAll("table.sortable")) {
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => header.querySelector("button").addEventListener("click", () => {
      const up = header.getAttribute("aria-sort") !== "ascending";
      headers.forEach((each) => each.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * compare(value(a, column), value(b, column)));
      body.append(...rows);
    }));
  }
  const search = document.getElementById("search");
  const rows = [...document.querySelectorAll("#features tbody tr")];
  search?.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    const number = /^\d+$/.test(wanted);
    let found = 0;
    for (const row of rows) {
      const name = row.cells[2].textContent.toLowerCase();
      const hit = name.includes(wanted) || (number && row.cells[0].textContent === wanted);
      row.hidden = !hit;
      found += hit;
    }
    document.getElementById("found").textContent = wanted ? `${found} of ${rows.length}` : "";
  });
  const tip = document.getElementById("tip");
  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest?.("svg [data-says], svg :has(> title)");
    if (!mark) { tip.hidden = true; return; }
    const title = mark.querySelector(":scope > title");
    if (title) { mark.dataset.says = title.textContent; title.remove(); }
    tip.textContent = mark.dataset.says;
    tip.hidden = false;
  });
  document.addEventListener("pointermove", (event) => {
    if (tip.hidden) return;
    const width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 6))}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
  });
})();
