// @ts-check
// Which edges of the chosen token are drawn as arcs.

const MOST = 5; // arcs of a head
const LEAST = 0.1; // of the strongest, below which an edge is not drawn

/**
 * The strongest edges of a ranking, each with its strength from 0 to 1; a token's edge to itself is no arc.
 * @param {Ranking} ranking
 * @param {Pick<Shaded, "token" | "top">} shaded
 * @returns {{ token: number, strength: number }[]}
 */
export function strongestEdges({ best }, { token, top }) {
  const least = LEAST * Math.abs(best[0]?.w ?? 0);
  return best
    .filter((one) => one.token !== token && Math.abs(one.w) >= least)
    .slice(0, MOST)
    .map((one) => ({ token: one.token, strength: Math.min(1, Math.abs(one.w) / top) }));
}
