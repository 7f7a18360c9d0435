// Sorts, narrows down, and shows a build in all plots and tables at once.
// It reads what it needs from the tables and writes text only, never HTML: names of builds are data.
"use strict";
(() => {
  const LIMIT = 100;
  const table = document.querySelector(".builds table");
  const bodies = [...table.tBodies];
  const rowsOf = (body) => [...body.rows].filter((row) => row.dataset.row !== undefined);
  const rows = bodies.flatMap(rowsOf);
  const folds = bodies.map((body) => body.querySelector(".group button"));
  const heads = [...table.tHead.rows[0].cells];
  const byNumber = new Map(rows.map((row) => [row.dataset.row, row]));
  const copies = [...document.querySelectorAll(".flavor tr[data-row]")];
  const marks = [...document.querySelectorAll("svg [data-rows]")];
  const card = document.getElementById("card");
  const more = document.getElementById("more");
  const form = document.querySelector(".controls");
  const words = rows.map((row) => `${row.parentNode.dataset.target} ${row.textContent}`.toLowerCase());
  let showAll = false;
  let kept = null;

  const numbersOf = (mark) => mark.dataset.rows.split(" ");
  const cellText = (cell) => (cell.title && cell.tagName === "TD" && !cell.classList.contains("number")
    ? cell.title : cell.textContent).trim();

  function narrow() {
    const typed = document.getElementById("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const optimal = document.getElementById("optimal").checked;
    const chosen = [...form.querySelectorAll("select")]
      .filter((select) => !select.selectedOptions[0].hasAttribute("data-all"))
      .map((select) => [select.dataset.parameter, select.value]);
    const wanted = new Set();
    rows.forEach((row, index) => {
      const fits = (!optimal || row.className.length > 0) && typed.every((word) => words[index].includes(word))
        && chosen.every(([key, value]) => has(row, key, value));
      if (fits) wanted.add(row.dataset.row);
    });
    const asked = typed.length > 0 || chosen.length > 0 || optimal;
    let shown = 0;
    bodies.forEach((body, index) => {
      let here = 0;
      const folded = !asked && folds[index].getAttribute("aria-expanded") === "false";
      for (const row of rowsOf(body)) {
        const fits = wanted.has(row.dataset.row);
        row.hidden = !fits || folded || (!showAll && shown >= LIMIT);
        if (fits && !folded) shown += 1;
        if (fits) here += 1;
      }
      body.rows[0].hidden = here === 0;
    });
    for (const row of copies) row.hidden = !wanted.has(row.dataset.row);
    for (const mark of marks) mark.classList.toggle("off", !numbersOf(mark).some((number) => wanted.has(number)));
    document.getElementById("count").textContent = `${wanted.size} of ${rows.length} builds`;
    more.hidden = showAll || wanted.size <= LIMIT;
    more.textContent = `show all ${wanted.size}`;
  }

  // A merged row has the values of all its configurations. The target is no column: it heads the rows.
  function has(row, key, value) {
    if (key === "target") return row.parentNode.dataset.target === value;
    const column = heads.findIndex((head) => head.dataset.key === key);
    return JSON.parse(row.cells[column].dataset.choices).includes(value);
  }

  // Numbers by value, which puts 0.25 before 0.5, and behind them other texts naturally.
  function compareTexts(a, b) {
    const [x, y] = [a, b].map((text) => (text === "" ? NaN : Number(text)));
    if (Number.isNaN(x) && Number.isNaN(y)) return a.localeCompare(b, undefined, { numeric: true });
    return Number.isNaN(x) - Number.isNaN(y) || x - y;
  }

  function sort(head, column) {
    const descending = head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.cells[column];
      if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
      return cell.classList.contains("number") ? NaN : cellText(cell);
    };
    const sign = descending ? -1 : 1;
    for (const body of bodies) {
      const sorted = rowsOf(body).map((row) => [key(row), row]);
      sorted.sort(([a], [b]) => {
        const [noA, noB] = [Number.isNaN(a), Number.isNaN(b)];
        if (noA || noB) return noA - noB;
        return typeof a === "number" && typeof b === "number" ? sign * (a - b)
          : sign * compareTexts(String(a), String(b));
      });
      body.append(...sorted.map(([, row]) => row));
    }
    narrow();
  }

  function light(numbers) {
    const lit = new Set(numbers);
    for (const mark of marks) mark.classList.toggle("lit", numbersOf(mark).some((number) => lit.has(number)));
    for (const row of [...rows, ...copies]) row.classList.toggle("lit", lit.has(row.dataset.row));
  }

  function show(numbers) {
    light(numbers);
    card.replaceChildren();
    card.hidden = numbers.length === 0;
    for (const number of numbers.slice(0, 4)) {
      const row = byNumber.get(number);
      const list = document.createElement("dl");
      [...row.cells].forEach((cell, index) => {
        if (cell.classList.contains("files") || cell.classList.contains("none")) return;
        const [name, value] = [document.createElement("dt"), document.createElement("dd")];
        name.textContent = headText(heads[index]);
        value.textContent = index === 0 ? `${cell.textContent.trim().replace(/\s+/g, " ")} (${cell.title})` : readable(cell);
        list.append(name, value);
      });
      card.append(list);
    }
    if (numbers.length > 4) card.append(`and ${numbers.length - 4} more builds here`);
  }

  const headText = (head) => [...head.childNodes].map((node) => node.textContent).join(" ").replace(". ", ".");
  function readable(cell) {
    const small = cell.querySelector("small");
    const plain = [...cell.childNodes].filter((node) => node !== small).map((node) => node.textContent).join(" ");
    return small ? `${plain.trim()} (${small.textContent})` : cellText(cell);
  }

  // All builds at one place, whatever colour their marks have.
  function atPlace(mark) {
    const place = mark.getAttribute("transform");
    const there = place ? [...mark.parentNode.children].filter((other) => other.dataset.rows
      && other.getAttribute("transform") === place && !other.classList.contains("off")) : [mark];
    return there.flatMap(numbersOf);
  }

  for (const mark of marks) {
    mark.querySelector("title")?.remove();  // the card says more
    mark.addEventListener("pointerenter", () => { if (!kept) show(atPlace(mark)); });
    mark.addEventListener("pointerleave", () => { if (!kept) show([]); });
    mark.addEventListener("click", (event) => {
      event.stopPropagation();
      kept = atPlace(mark);
      show(kept);
    });
  }
  for (const row of [...rows, ...copies]) {
    row.addEventListener("click", (event) => {
      if (event.target.closest("a, summary")) return;
      event.stopPropagation();
      kept = [row.dataset.row];
      light(kept);
      card.hidden = true;
    });
  }
  const letGo = () => { kept = null; show([]); };
  document.addEventListener("click", (event) => { if (!event.target.closest("#card")) letGo(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") letGo(); });
  heads.forEach((head, column) => {
    if (head.textContent === "files") return;
    head.setAttribute("aria-sort", "none");
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(head, column));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(head, column); });
  });
  folds.forEach((fold) => {
    fold.disabled = false;
    if ("folded" in table.dataset) fold.setAttribute("aria-expanded", "false");
    fold.addEventListener("click", () => {
      fold.setAttribute("aria-expanded", String(fold.getAttribute("aria-expanded") === "false"));
      narrow();
    });
  });
  for (const event of ["input", "change"]) form.addEventListener(event, narrow);
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => { showAll = true; narrow(); });
  form.hidden = false;
  narrow();
})();
