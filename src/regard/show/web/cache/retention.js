// @ts-check
// What cache policies keep of the heads of a text, from the tables of `retention.py`: places, means, sentences, curves.
// It knows numbers; Python has measured them.

import { known } from "../data/arrays.js";
import { count, percent, some } from "../data/format.js";

/** @typedef {LayerRetention | undefined} Measured undefined until its layer was measured */

/**
 * The first layer that was measured and has a cache; all have the same policies and budgets.
 * @param {Measured[]} tables
 */
export function firstMeasured(tables) {
  return tables.find((table) => table?.budgets);
}

/**
 * The policies of a table without the two baselines.
 * @param {LayerRetention} table
 */
export function ownPolicies({ policies }) {
  const own = policies.filter((name) => name !== "random" && name !== "best");
  return own.length ? own : policies;
}

/**
 * The place among the budgets of the smallest one that a head needs, or their number if it needs more than all of them.
 * Undefined until the layer was measured, and null if it has no cache.
 * @param {Measured} table
 * @param {string} policy
 * @param {number} head by its place in the layer
 */
export function neededPlace(table, policy, head) {
  if (!table) return undefined;
  if (!table.budgets) return null;
  const needed = table.needed[table.policies.indexOf(policy)][head];
  return needed === null ? table.budgets.length : table.budgets.indexOf(needed);
}

/**
 * The share that a head keeps under a policy, at each budget; one that loses nothing keeps all.
 * @param {LayerRetention} table
 * @param {string} policy
 * @param {number} head by its place in the layer
 */
export function sharesOf({ policies, shares }, policy, head) {
  return shares[policies.indexOf(policy)].map((row) => row[head] ?? 1);
}

/**
 * The mean over the heads of all layers that have a cache, at each budget.
 * @param {Measured[]} tables
 * @param {string} policy
 */
export function meanShares(tables, policy) {
  const heads = tables.flatMap((table) =>
    table?.budgets ? table.needed[0].map((_, head) => sharesOf(table, policy, head)) : [],
  );
  return heads[0].map((_, at) => heads.reduce((sum, shares) => sum + shares[at], 0) / heads.length);
}

/**
 * How many heads keep enough under a policy with the budget at a place, over all layers that have a cache.
 * @param {Measured[]} tables
 * @param {string} policy
 * @param {number} at
 */
function servedHeads(tables, policy, at) {
  const places = tables.flatMap((table) =>
    table?.budgets ? table.needed[0].map((_, head) => neededPlace(table, policy, head) ?? 0) : [],
  );
  return { served: places.filter((place) => place <= at).length, all: places.length };
}

/**
 * Numbers of the two baselines in brackets, for those that were measured.
 * @param {LayerRetention} table
 * @param {string} policy that stands before them
 * @param {(policy: string) => string | number} say
 */
function besideBaselines({ policies }, policy, say) {
  const parts = Object.entries({ random: "random keys", best: "the best possible" })
    .filter(([name]) => name !== policy && policies.includes(name))
    .map(([name, words]) => `${words} ${say(name)}`);
  return parts.length ? ` (${parts.join(", ")})` : "";
}

/**
 * How many heads a policy serves with a small cache, and how many with none, as a sentence.
 * @param {Measured[]} tables
 * @param {string} policy
 */
export function policySentence(tables, policy) {
  const table = firstMeasured(tables);
  if (!table) return "";
  const { budgets, tokens } = table;
  const [middle, end] = [Math.floor((budgets.length - 1) / 2), budgets.length - 1];
  const { served, all } = servedHeads(tables, policy, middle);
  const more = all - servedHeads(tables, policy, end).served;
  const most = some(budgets[end], "key");
  const rest = more
    ? `${more} need${more === 1 ? "s" : ""} more than ${most}`
    : `with ${most} all of them do`;
  const beside = besideBaselines(table, policy, (name) => servedHeads(tables, name, middle).served);
  return (
    `With ${policy}, ${served} of ${some(all, "head")} keep 95% of their attention in a cache of ` +
    `${some(budgets[middle], "key")} for ${some(tokens, "token")}${beside}; ${rest}.`
  );
}

/**
 * What the chosen head keeps with the cache that it needs, or with the largest, as a sentence.
 * @param {LayerRetention} table
 * @param {string} policy
 * @param {number} head by its place in the layer
 */
export function retainedSentence(table, policy, head) {
  const { budgets } = table;
  const at = Math.min(neededPlace(table, policy, head) ?? 0, budgets.length - 1);
  const shareOf = (/** @type {string} */ name) => percent(sharesOf(table, name, head)[at]);
  const beside = besideBaselines(table, policy, shareOf);
  return `With ${policy} and ${some(budgets[at], "key")} it keeps ${shareOf(policy)} of its attention${beside}.`;
}

/**
 * The shares over the budgets, a line for each policy with the chosen one in front.
 * @param {object} what
 * @param {LayerRetention} what.table
 * @param {string} what.policy the chosen one
 * @param {string} what.of whose shares they are, as in "layer 3, head 1"
 * @param {(policy: string) => number[]} what.shares
 * @param {number} [what.mark] the place of a budget
 * @returns {ChartData}
 */
export function retentionChart({ table: { policies, budgets }, policy, of, shares, mark }) {
  /** @type {Record<string, string>} */
  const kinds = { random: "null", best: "other", [policy]: "own" };
  const ordered = [...policies.filter((name) => name !== policy), policy];
  const end = budgets.length - 1;
  return {
    label: `Attention that policies keep of ${of}, by the keys in the cache`,
    description: `With ${some(budgets[end], "key")}, ${policy} keeps ${percent(shares(policy)[end])}.`,
    mark: known(mark) && mark <= end ? mark : null,
    x: {
      title: "keys in the cache",
      low: 0,
      high: end,
      say: (at) => (budgets[at] ? count(budgets[at]) : ""),
    },
    y: { title: "attention kept", low: 0, high: 1, say: percent },
    series: ordered.map((name) => ({
      name,
      kind: kinds[name] ?? "plain",
      id: name,
      about: name,
      points: shares(name).map((share, at) => [at, share]),
    })),
  };
}

/**
 * The share of every head by policy and budget, as a table.
 * @param {Layer[]} layers
 * @param {Measured[]} tables
 * @returns {TableRow[]}
 */
export function retentionRows(layers, tables) {
  const rows = layers.flatMap(({ key, heads }, y) => {
    const table = tables[y];
    if (!table?.budgets) return [];
    return table.policies.flatMap((policy, p) =>
      table.budgets.flatMap((budget, b) =>
        heads.map((head, x) => [key, head, policy, budget, table.shares[p][b][x] ?? 1]),
      ),
    );
  });
  return [["layer", "head", "policy", "budget", "share"], ...rows];
}
