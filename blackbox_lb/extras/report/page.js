"use strict";
// Sorting, searching, and the filter of examples. Without it the page is whole: all rows, everything readable, nothing to click.
(() => {
  const FIRST = 50;
  const all = document.body.classList;
  document.getElementById("print").addEventListener("click", () => window.print());
  document.getElementById("print-all").addEventListener("click", () => { all.add("all"); window.print(); });
  for (const each of document.querySelectorAll(".controls")) each.hidden = false;

  let opened = [];
  window.addEventListener("beforeprint", () => {
    if (!all.contains("all")) return;
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const each of opened) each.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const each of opened) each.open = false;
    opened = [];
    all.remove("all");
  });

  const key = (row, column) => {
    const cell = row.cells[column];
    const raw = cell.dataset.v;
    if (!cell.classList.contains("number")) return (raw ?? cell.textContent).toLocaleLowerCase();
    return raw === undefined ? null : Number(raw);
  };
  const byKey = (one, other, sign) => {
    if (one === null || other === null) return (one === null) - (other === null); // the unknown last, both ways
    if (typeof one === "number") return sign * (one - other);
    return sign * (one < other ? -1 : one > other ? 1 : 0);
  };

  const equip = (table) => {
    const body = table.tBodies[0];
    const box = table.closest(".table");
    const search = box.querySelector("input[type=search]");
    const found = box.querySelector("output");
    const more = box.querySelector("button.more");
    let rows = [...body.rows];
    const text = new Map();
    let all = false;

    const show = () => {
      const wanted = search ? search.value.trim().toLocaleLowerCase() : "";
      let hits = 0;
      for (const row of rows) {
        if (wanted && !text.has(row)) {
          const raw = [...row.cells].map((cell) => cell.dataset.v ?? "").join("\n");
          text.set(row, `${row.textContent}\n${raw}`.toLocaleLowerCase());
        }
        const hit = !wanted || text.get(row).includes(wanted);
        hits += hit;
        row.hidden = !hit || (more !== null && !all && hits > FIRST);
      }
      if (found) found.textContent = wanted ? `${hits.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows` : "";
      if (more) {
        more.hidden = all || hits <= FIRST;
        more.textContent = `Show all ${hits.toLocaleString("en")} rows`;
      }
    };

    const sort = (header, column) => {
      const first = header.classList.contains("number") ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = header.getAttribute("aria-sort") === first ? other : first;
      for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      rows = rows
        .map((row) => [key(row, column), row])
        .sort((one, another) => byKey(one[0], another[0], sign))
        .map((pair) => pair[1]);
      body.append(...rows);
      show();
    };

    [...table.tHead.rows[0].cells].forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => sort(header, column));
    });
    if (search) search.addEventListener("input", show);
    if (more) more.addEventListener("click", () => { all = true; show(); });
    show();
  };
  for (const table of document.querySelectorAll("table.sortable")) equip(table);

  const filter = document.querySelector("form.filter");
  if (filter) {
    const section = filter.closest("section");
    const cards = [...section.querySelectorAll("article.example")];
    const rest = section.querySelector("details.rest");
    const summary = rest && rest.querySelector("summary");
    const found = filter.querySelector("output");
    const apply = () => {
      const wanted = filter.elements.status ? filter.elements.status.value : "";
      let shown = 0;
      for (const card of cards) {
        card.hidden = wanted !== "" && card.dataset.status !== wanted;
        shown += !card.hidden;
      }
      if (rest && wanted) rest.open = true;
      if (summary) summary.hidden = wanted !== "";
      found.textContent = wanted ? `${shown.toLocaleString("en")} of ${cards.length.toLocaleString("en")} prompts` : "";
      section.classList.toggle("no-tokens", filter.elements.tokens !== undefined && !filter.elements.tokens.checked);
    };
    const follow = () => {
      const choice = [...filter.querySelectorAll("input[type=radio]")].find((each) => `#${each.value}` === location.hash);
      if (!choice || choice.disabled) return;
      choice.checked = true;
      apply();
    };
    filter.addEventListener("input", apply);
    filter.addEventListener("submit", (event) => event.preventDefault());
    window.addEventListener("hashchange", follow);
    apply();
    follow();
  }
})();
