// @ts-check
// The first question of a served page, asked while the rest of its code is still on its way.

import { openHttp } from "./http.js";

const transport = openHttp();
const meta = transport.ask("meta", {});
meta.catch(() => {}); // whoever opens the page hears of it

/** The transport, and the answer that is on its way. */
export const early = { transport, meta };
