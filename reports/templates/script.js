// Replaces the static drawing of the memory timeline by a zoomable chart.  Without JavaScript the drawing stays.
(() => {
  "use strict";
  const figure = document.getElementById("timeline-figure");
  const chart = document.getElementById("timeline-chart");
  const data = JSON.parse(document.getElementById("timeline-data").textContent);

  // Read the colours from styled elements, so that the style sheet is the only source for both themes.
  const probe = document.createElement("span");
  const colour = (kind, property) => {
    probe.className = kind;
    return getComputedStyle(probe).getPropertyValue(property);
  };

  const traces = () => data.series.map((series) => ({
    x: data.time_ms, y: series.values, name: series.name, type: "scatter", mode: "lines", stackgroup: "memory",
    line: { shape: "hv", width: 0 }, fillcolor: colour("swatch " + series.kind, "background-color"),
    hovertemplate: "%{y:.1f} " + data.unit,
  }));

  const layout = () => {
    const ink = colour("ink", "color"), line = colour("rule", "color");
    const axis = { color: ink, gridcolor: line, zeroline: false };
    return {
      height: 380, margin: { l: 64, r: 16, t: 32, b: 48 }, showlegend: false, hovermode: "x unified",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, family: "system-ui, sans-serif" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("soft", "color"), activecolor: ink },
      hoverlabel: { bgcolor: colour("paper", "background-color"), font: { color: ink } },
      xaxis: { ...axis, title: { text: "ms" } }, yaxis: { ...axis, title: { text: data.unit }, rangemode: "tozero" },
      shapes: data.steps.map(([at]) => (
        { type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1, line: { color: ink, width: 1, dash: "dot" } })),
    };
  };

  const buttons = ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"];
  const options = { displaylogo: false, responsive: true, modeBarButtons: [buttons] };
  const draw = () => {
    figure.appendChild(probe);
    Plotly.react(chart, traces(), layout(), options);
    probe.remove();
  };

  draw();
  figure.classList.add("live");  // only after drawing: if it fails, the static drawing stays
  document.querySelector(".theme").addEventListener("change", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
