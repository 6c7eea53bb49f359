// Adds a cursor, the values at its time, and zoom to the drawing of the memory timeline.  Without JavaScript the
// drawing stays as it is.  Times are in ms; the drawing's viewBox is SIZE wide for the entire timeline.
(() => {
  "use strict";
  const SIZE = 1000, MIN_DRAG_PX = 5, MAX_ZOOM = 10000, PAGE = 0.1, MIN_STEP = 0.06, MIN_PHASE = 0.09;
  const { figure, data, find } = openChart("timeline");
  const areas = find("svg.areas"), times = find("svg.times"), readout = find(".readout"), reset = find(".reset");
  const whole = [0, data.end_ms], wholeTimes = [...times.childNodes];
  const [peakAt, peakText] = data.peak;
  let view = whole, at = peakAt, dragStart = null;

  const toX = (time) => SIZE * time / data.end_ms;
  const toRatio = (time) => (time - view[0]) / (view[1] - view[0]);
  const percent = (ratio) => 100 * ratio + "%";
  const formatTime = (time) =>
    time.toFixed(clamp(3 - Math.floor(Math.log10(view[1] - view[0])), 0, 6)) + " ms";
  const formatValue = (value) => value.toFixed(value < 10 ? 2 : 1);

  // The last of the sorted times that is not after `time`.
  const findIndex = (list, time) => {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle] <= time) low = middle + 1; else high = middle;
    }
    return low - 1;
  };
  const stepTimes = data.steps.map(([start]) => start), phaseTimes = data.phases.map(([start]) => start);

  const describe = () => {
    const index = Math.max(0, findIndex(data.time_ms, at));
    const step = data.steps[findIndex(stepTimes, at)], phase = data.phases[findIndex(phaseTimes, at)];
    const where = [formatTime(at), step && step[1], phase && at < phase[1] && phase[2]].filter(Boolean).join(", ");
    const values = data.series.map((series) => [series.name, series.values[index]]).filter(([, value]) => value > 0);
    const total = values.reduce((sum, [, value]) => sum + value, 0);
    const parts = values.map(([name, value]) => name + " " + formatValue(value) + " " + data.unit).join(", ");
    return where + ": " + formatValue(total) + " " + data.unit + " live" + (parts && " = " + parts);
  };

  const drawTimes = () => {
    const drawn = [], label = (ratio, y, text, anchor = "start") =>
      drawn.push(makeSvg("text", { x: percent(ratio), dx: anchor === "start" ? 2 : 0, y, "text-anchor": anchor }, text));
    for (const [start, end, name] of data.phases) {
      const left = clamp(toRatio(start), 0, 1), width = clamp(toRatio(end), 0, 1) - left;
      if (width > 0) drawn.push(makeSvg("rect", { class: "phase", x: percent(left), width: percent(width), y: 4, height: 3 }));
      if (width >= MIN_PHASE) label(left, 20, name);
    }
    let free = 0;
    for (const [start, name] of data.steps) {
      const left = toRatio(start);
      if (left < free || left > 1 - 2 * MIN_STEP) continue;
      label(left, 38, name);
      free = left + MIN_STEP;
    }
    label(0, 56, formatTime(view[0]));
    label(1, 38, formatTime(view[1]), "end");
    const peak = toRatio(peakAt);
    if (peak >= 2 * MIN_STEP && peak <= 1) label(peak, 56, "▲ " + peakText, peak > 0.6 ? "end" : "start");
    return drawn;
  };

  const cursor = areas.appendChild(makeSvg("line", { class: "cursor", y1: 0, y2: SIZE }));
  const selection = areas.appendChild(makeSvg("rect", { class: "selection", y: 0, height: SIZE, width: 0 }));

  const moveTo = (time) => {
    at = clamp(time, view[0], view[1]);
    cursor.setAttribute("x1", toX(at));
    cursor.setAttribute("x2", toX(at));
    const text = readout.textContent = describe();
    const slider = { valuemin: view[0], valuemax: view[1], valuenow: at, valuetext: text };
    for (const [key, value] of Object.entries(slider)) areas.setAttribute("aria-" + key, value);
  };
  const show = (start, end) => {
    const span = clamp(end - start, data.end_ms / MAX_ZOOM, data.end_ms);
    const from = clamp(start, 0, data.end_ms - span);
    view = span < data.end_ms ? [from, from + span] : whole;
    areas.setAttribute("viewBox", [toX(view[0]), 0, toX(view[1] - view[0]), SIZE].join(" "));
    times.replaceChildren(...(view === whole ? wholeTimes : drawTimes()));
    reset.disabled = view === whole;
    moveTo(at);
  };
  const showAll = () => show(...whole);
  const zoomBy = (factor) => show(at - (at - view[0]) / factor, at + (view[1] - at) / factor);
  // Moves the cursor, and the view with it.
  const goTo = (time) => {
    at = clamp(time, 0, data.end_ms);
    const shift = Math.min(0, at - view[0]) + Math.max(0, at - view[1]);
    show(view[0] + shift, view[1] + shift);
  };
  const goToPoint = (change) => {
    const index = clamp(findIndex(data.time_ms, at) + change, 0, data.time_ms.length - 1);
    goTo(data.time_ms[index]);
  };

  const timeAt = (event) => {
    const box = areas.getBoundingClientRect();
    return view[0] + clamp((event.clientX - box.left) / box.width, 0, 1) * (view[1] - view[0]);
  };
  const drawSelection = () => {
    const width = dragStart === null ? 0 : Math.abs(toX(at) - toX(dragStart.time));
    selection.setAttribute("width", width);
    if (width) selection.setAttribute("x", toX(Math.min(at, dragStart.time)));
  };
  const endDrag = () => {
    dragStart = null;
    drawSelection();
  };
  areas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    dragStart = { time: timeAt(event), x: event.clientX };
    areas.setPointerCapture(event.pointerId);
  });
  areas.addEventListener("pointermove", (event) => {
    moveTo(timeAt(event));
    drawSelection();
  });
  areas.addEventListener("pointerup", (event) => {
    if (dragStart === null) return;
    const { time, x } = dragStart;
    endDrag();
    moveTo(timeAt(event));
    if (Math.abs(event.clientX - x) < MIN_DRAG_PX) return;
    show(Math.min(time, at), Math.max(time, at));
    moveTo(timeAt(event));  // the pointer is over another time now
  });
  areas.addEventListener("pointercancel", endDrag);
  areas.addEventListener("dblclick", showAll);
  reset.addEventListener("click", showAll);
  addEventListener("beforeprint", showAll);

  listenForKeys(areas, {
    ArrowLeft: () => goToPoint(-1), ArrowRight: () => goToPoint(1),
    PageDown: () => goTo(at - PAGE * (view[1] - view[0])), PageUp: () => goTo(at + PAGE * (view[1] - view[0])),
    Home: () => goTo(0), End: () => goTo(data.end_ms),
    "+": () => zoomBy(2), "=": () => zoomBy(2), "-": () => zoomBy(0.5), Escape: showAll,
  });

  areas.setAttribute("role", "slider");
  areas.setAttribute("tabindex", 0);
  showAll();
  figure.classList.add("live");  // last: if something above fails, the drawing stays as it was
})();
