// What a reader does with the page, by mouse and keyboard; what came of it is put at the page's end.
{
  const log = [];
  const $ = (id) => document.getElementById(id);
  const maps = [...document.querySelectorAll(".map")];
  const key = (target, name) => target.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true}));
  const title = () => $("zoom").open + " " + $("zoom-title").textContent;
  const paint = maps[1].firstElementChild.getContext("2d").getImageData(0, 0, 2, 1).data;
  log.push("pixels " + [...paint.slice(0, 3)] + " " + [...paint.slice(4, 7)]);
  log.push("stops " + maps.filter((map) => map.tabIndex === 0).length);
  maps[0].focus();
  key(maps[0], "ArrowRight");
  log.push("focus " + maps.indexOf(document.activeElement));
  document.activeElement.click();
  log.push(title());
  key($("zoom"), "ArrowRight");
  log.push(title());
  $("previous").click();
  $("passage").children[1].click();
  log.push($("strongest").textContent);
  log.push([...$("links").children].map((row) => [...row.children].map((c) => c.textContent).join("|")).join(";"));
  const size = $("zoom").getBoundingClientRect().height;
  const large = $("large");
  const box = large.getBoundingClientRect();
  const at = (x, y) => large.dispatchEvent(new PointerEvent("pointermove",
    {clientX: box.right - x, clientY: box.bottom - y}));
  at(6, 6);
  log.push($("readout").textContent);
  at(6, 50);
  log.push($("readout").textContent);
  log.push("jump " + ($("zoom").getBoundingClientRect().height - size));
  $("close").click();
  log.push(title());
  $("sqrt").click();
  log.push("pixels " + [...maps[1].firstElementChild.getContext("2d").getImageData(0, 1, 1, 1).data.slice(0, 3)]);
  log.push("requests " + performance.getEntriesByType("resource").length);
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = log.join("\n");
  document.body.append(result);
}
