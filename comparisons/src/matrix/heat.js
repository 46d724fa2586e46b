// Sorts and filters the heat map, and moves the focus by the arrow keys. Without it the page shows everything.
(() => {
  const map = document.querySelector(".map");
  const form = map.querySelector("form"), readout = map.querySelector(".readout");
  const [table] = map.getElementsByTagName("table"), [body] = table.tBodies;
  const heads = [...table.querySelectorAll(".workloads th")].slice(1);
  const plans = [...table.querySelectorAll(".plans th")];
  const rows = [...body.rows].map((row, order) => ({
    row, order, name: row.cells[0].textContent, runtime: row.dataset.runtime, cells: [...row.cells].slice(1),
  }));
  const names = heads.map((head) => head.dataset.plan + ": " + head.firstElementChild.firstChild.data);
  const cost = (cell) => parseFloat(cell.dataset.c);
  const isDecided = (cell) => /^(eq|[bw]\d)/.test(cell.className);
  const input = (name) => form.elements.namedItem(name);

  const option = (select, value, text) => select.add(new Option(text, value));
  for (const runtime of new Set(rows.map((it) => it.runtime))) option(input("runtime"), runtime, runtime);
  const planNames = [...new Set(heads.map((head) => head.dataset.plan))].filter(Boolean);
  for (const plan of planNames) option(input("plan"), plan, plan);
  input("plan").parentElement.hidden = planNames.length === 0;
  names.forEach((name, index) => option(input("sort"), index, name.replace(/^: /, "")));

  const key = (by) => (it) => {
    const figure = cost(it.cells[by]);
    return Number.isNaN(figure) ? Infinity : figure;
  };
  const compare = (by) => {
    if (by === "") return (a, b) => a.order - b.order;
    if (by === "name") return (a, b) => a.name.localeCompare(b.name);
    const keys = new Map(rows.map((it) => [it, key(by)(it)]));
    return (a, b) => keys.get(a) === keys.get(b) ? a.order - b.order : keys.get(a) - keys.get(b);
  };

  const holds = (text, wanted) => wanted.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));
  const update = () => {
    const [inRow, inName, runtime, plan, by] = ["rows", "workloads", "runtime", "plan", "sort"].map((it) => input(it).value);
    const decided = input("decided").checked;
    const wanted = heads.map((head, index) => holds(names[index], inName) && (!plan || head.dataset.plan === plan));
    for (const it of rows) it.isWanted = holds(it.name, inRow) && (!runtime || it.runtime === runtime);
    // A row or a workload with nothing to show is hidden.
    const shows = (it, index) => it.cells[index].firstElementChild && (!decided || isDecided(it.cells[index]));
    const says = (it, index) => shows(it, index) && it.cells[index].className !== "base";
    for (const it of rows) {
      it.row.hidden = !it.isWanted || !wanted.some((isWanted, index) => isWanted && says(it, index));
      it.cells.forEach((cell, index) => cell.classList.toggle("blank", cell.firstElementChild !== null && !shows(it, index)));
    }
    const shown = wanted.map((isWanted, index) => isWanted && rows.some((it) => !it.row.hidden && says(it, index)));
    heads.forEach((head, index) => {
      head.hidden = !shown[index];
      for (const it of rows) it.cells[index].hidden = head.hidden;
      if (String(index) === by) head.setAttribute("aria-sort", "ascending");
      else head.removeAttribute("aria-sort");
    });
    let first = 0;
    for (const head of plans) {
      const count = head.dataset.span ??= head.colSpan;
      const left = shown.slice(first, first += Number(count)).filter(Boolean).length;
      head.hidden = left === 0;
      head.colSpan = left || 1;
    }
    const sorted = [...rows].sort(compare(by));
    sorted.forEach((it, place) => it.row.style.setProperty("--r", place + 1));
    body.append(...sorted.map((it) => it.row));
    const visible = rows.filter((it) => !it.row.hidden).length;
    form.querySelector("output").value =
      visible + " of " + rows.length + " rows, " + shown.filter(Boolean).length + " of " + heads.length + " workloads";
    enter();
  };

  // One link of the map is in the tab order; arrow keys move from it.
  const lines = () => [heads.map((it) => it.lastElementChild), heads.map((it) => it.firstElementChild),
    ...[...body.rows].map((row) => [...row.cells].slice(1).map((cell) => cell.firstElementChild))];
  const isShown = (link) => link && link.offsetParent !== null && getComputedStyle(link).visibility === "visible";
  const enter = (link) => {
    const links = [...table.querySelectorAll("a")];
    const current = link ?? [...body.querySelectorAll("a")].find(isShown);
    for (const it of links) it.tabIndex = it === current ? 0 : -1;
  };
  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  table.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = lines();
    let y = all.findIndex((line) => line.includes(document.activeElement));
    if (y === -1) return;
    let x = all[y].indexOf(document.activeElement);
    do { y += step[0]; x += step[1]; } while (all[y] && x in all[y] && !isShown(all[y][x]));
    const next = all[y]?.[x];
    if (!next) return;
    event.preventDefault();
    enter(next.tagName === "A" ? next : undefined);
    next.focus();
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  const say = (event) => {
    const link = event.target.closest("td a");
    if (link) readout.textContent = link.getAttribute("aria-label");
  };
  table.addEventListener("pointerover", say);
  table.addEventListener("focusin", say);
  readout.textContent = "Point at a cell to read it in full.";

  heads.forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.tabIndex = -1;
    button.textContent = "▼";
    button.setAttribute("aria-label", "sort by " + names[index]);
    button.addEventListener("click", () => {
      input("sort").value = input("sort").value === String(index) ? "" : String(index);
      update();
    });
    head.append(button);
  });
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  update();
})();
