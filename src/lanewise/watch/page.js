"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // -- light and dark: as the system has it until the user chooses ---------------------------------
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = document.getElementById("theme");
  let chosenTheme = null;
  const showTheme = () => {
    root.dataset.theme = chosenTheme ?? (systemDark.matches ? "dark" : "light");
    theme.textContent = root.dataset.theme === "dark" ? "Light" : "Dark";
  };
  theme.addEventListener("click", () => {
    chosenTheme = root.dataset.theme === "dark" ? "light" : "dark";
    showTheme();
  });
  systemDark.addEventListener("change", showTheme);
  showTheme();

  // -- which program, and which of its runs ------------------------------------------------------------
  const showSite = (id) => {
    for (const section of all("section.site")) section.hidden = section.id !== id;
    for (const row of all("tr.choice")) {
      const chosen = row.dataset.site === id;
      row.classList.toggle("chosen", chosen);
      row.querySelector("button").setAttribute("aria-pressed", chosen);
    }
  };
  for (const row of all("tr.choice")) {
    row.addEventListener("click", () => {
      showSite(row.dataset.site);
      document.getElementById(row.dataset.site).scrollIntoView({ block: "nearest" });
    });
  }
  for (const select of all("select.runs")) {
    select.addEventListener("change", () => {
      for (const run of all(".run", select.closest("section"))) run.hidden = run.id !== select.value;
    });
  }
  const filter = document.getElementById("filter");
  filter?.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const row of all("tr.choice")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });

  // -- by tick or by time -------------------------------------------------------------------------------
  for (const button of all("button[data-axis]")) {
    button.addEventListener("click", () => {
      document.body.dataset.axis = button.dataset.axis;
      for (const other of all("button[data-axis]"))
        other.setAttribute("aria-pressed", other.dataset.axis === button.dataset.axis);
    });
  }

  // -- a block, wherever it is shown ----------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    const place = event.target.closest("[data-block]");
    if (!place) return;
    const run = place.closest(".run");
    const mark = !place.classList.contains("marked");
    for (const other of all("[data-block]", run))
      other.classList.toggle("marked", mark && other.dataset.block === place.dataset.block);
  });

  // -- what is under the pointer ----------------------------------------------------------------------------
  const tip = document.getElementById("tip");
  const figuresOf = (run) => {
    if (!run.figures) run.figures = JSON.parse(run.querySelector("script.figures").textContent);
    return run.figures;
  };
  const inHeatMap = (svg, row, event) => {
    const figures = figuresOf(svg.closest(".run"));
    const box = row.querySelector(".empty").getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    if (share < 0 || share > 1) return "";
    const edges = svg.closest(".by-time") ? figures.seconds : figures.ticks;
    const at = edges[0] + share * (edges[edges.length - 1] - edges[0]);
    const bin = Math.max(edges.findIndex((edge) => edge > at), 1) - 1;
    const index = all(".row", svg).indexOf(row);
    const lanes = figures.lanes[index][bin];
    const ticks = figures.ticks;
    return `${figures.blocks[index]}\nticks ${ticks[bin]} to ${ticks[bin + 1]}\n` +
      (lanes > 0 ? `${lanes} lanes a tick` : "did not run");
  };
  const words = (event) => {
    const svg = event.target.closest?.("svg");
    if (!svg) return "";
    const row = event.target.closest(".heat-chart .row");
    if (row) return inHeatMap(svg, row, event);
    const titled = event.target.closest("[data-tip]") ?? event.target.querySelector(":scope > title")?.parentNode
      ?? event.target.closest("g")?.querySelector(":scope > title")?.parentNode;
    const title = titled?.querySelector(":scope > title");
    if (title) {
      // Ours is shown at once; the browser's own would come on top of it.
      titled.dataset.tip = title.textContent;
      title.remove();
    }
    return titled?.dataset.tip ?? "";
  };
  document.addEventListener("pointermove", (event) => {
    tip.textContent = words(event);
    tip.hidden = !tip.textContent;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
  });
})();
