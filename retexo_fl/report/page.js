"use strict";
// Without this script the page is complete: points carry native tooltips, tables keep their order.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : -Infinity;
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      const order = (a, b) => (key(a, column) < key(b, column) ? -sign : key(a, column) > key(b, column) ? sign : 0);
      body.append(...[...body.rows].sort(order));
    });
  });
}
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
for (const chart of document.querySelectorAll("svg.chart")) {
  const hits = [...chart.querySelectorAll(".hit")].map((dot) => {
    const title = dot.querySelector("title");
    title.remove();
    return { dot, x: Number(dot.getAttribute("cx")), text: title.textContent };
  });
  if (!hits.length) continue;
  let shown = null;
  const clear = () => {
    if (shown) shown.dot.classList.remove("on");
    shown = null;
    tip.hidden = true;
  };
  chart.addEventListener("pointerleave", clear);
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    const near = hits.reduce((best, hit) => (Math.abs(hit.x - x) < Math.abs(best.x - x) ? hit : best));
    if (near !== shown) {
      clear();
      shown = near;
      near.dot.classList.add("on");
      tip.textContent = near.text;
      tip.hidden = false;
    }
    const dot = near.dot.getBoundingClientRect();
    const left = dot.left + dot.width / 2 - tip.offsetWidth / 2;
    tip.style.left = `${scrollX + Math.max(8, Math.min(left, innerWidth - tip.offsetWidth - 16))}px`;
    tip.style.top = `${scrollY + dot.top - tip.offsetHeight - 8}px`;
  });
}
