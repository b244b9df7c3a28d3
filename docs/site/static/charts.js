// Draws every chart of a page in the colours of the page, and again when the reader changes from light to dark.
(() => {
  const draw = () => {
    const style = getComputedStyle(document.body);
    const ink = style.getPropertyValue("--md-typeset-color") || style.color;
    const lines = style.getPropertyValue("--md-default-fg-color--lightest");
    for (const source of document.querySelectorAll("script[data-chart]")) {
      const figure = JSON.parse(source.textContent);
      const axis = { gridcolor: lines, zerolinecolor: lines, automargin: true };
      const layout = { ...figure.layout, paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: ink } };
      layout.xaxis = { ...axis, ...layout.xaxis };
      layout.yaxis = { ...axis, ...layout.yaxis };
      Plotly.react(`chart-${source.dataset.chart}`, figure.data, layout, { responsive: true, displaylogo: false });
    }
  };
  draw();
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
})();
