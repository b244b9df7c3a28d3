// Draws every chart of a page in the colours of the page, and again when the reader changes from light to dark.
(() => {
  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--pst-color-text-base");
    const lines = style.getPropertyValue("--pst-color-border");
    const narrow = document.documentElement.clientWidth < 600;
    for (const source of document.querySelectorAll("script[data-chart]")) {
      const figure = JSON.parse(source.textContent);
      const axis = { gridcolor: lines, zerolinecolor: lines, automargin: true };
      const layout = { ...figure.layout, paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: ink } };
      layout.modebar = { bgcolor: "transparent", color: lines, activecolor: ink };
      layout.xaxis = { ...axis, ...layout.xaxis };
      layout.yaxis = { ...axis, ...layout.yaxis };
      for (const menu of layout.updatemenus || []) {
        // Plotly paints the active button nearly white, whatever the page's colours are
        Object.assign(menu, { bgcolor: "#d5d9de", bordercolor: lines, font: { color: "#222" } });
        if (narrow) menu.type = "dropdown"; // four buttons beside each other are wider than a telephone
      }
      if (narrow) {
        layout.margin = { ...layout.margin, r: 8 };
        for (const trace of figure.data) {
          if (trace.colorbar) Object.assign(trace.colorbar, { orientation: "h", y: -0.6, thickness: 12, tickangle: 0 });
        }
      }
      Plotly.react(`chart-${source.dataset.chart}`, figure.data, layout, {
        responsive: true,
        displaylogo: false,
        displayModeBar: narrow ? false : "hover",
      });
    }
  };
  draw();
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
})();
