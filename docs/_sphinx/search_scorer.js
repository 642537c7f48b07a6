// The order of what a search finds. The scores are those of Sphinx; `score` puts a lesson first whose title has
// every word that was looked for, and the source files last.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, title, , , score]) => {
    const query = new URLSearchParams(location.search).get("q") ?? "";
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const lesson = /^learn\/(\d\d)_/.exec(page);
    if (lesson && words.every((word) => title.toLowerCase().includes(word))) {
      return score + 1000 - Number(lesson[1]); // the earlier of two lessons comes first
    }
    return page.startsWith("source/") ? score - 100 : score;
  },
};
