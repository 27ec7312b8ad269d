// An agent's conversation grows by a question or a tool's result and a short answer each turn: time to first token by
// turn. What was there before a turn is in the cache, so a turn costs its own tokens, and attention to the others.
// Without a peer that is set up, ours is measured alone.
import { existsSync } from 'node:fs'
import { firstTokens, measure, median } from '../job.ts'
import { text } from '../prompts.ts'
import { comparisonRow, type Row, type Sides, singleRow } from '../rounds.ts'
import { llamaServer, noEndToken, type Side, sampling, startLlamaServer, startOurs } from '../servers.ts'

const turns = 100
/** Tokens of the instructions with their descriptions of tools, of what comes in a turn, and of an answer. */
const [instructions, news, answer] = [1500, 40, 12]
const context = 8192
/** Turns whose median is a figure: one alone varies with the machine. */
const measured = 10
/** A turn's tokens attend to those before them: 6,000 in the last turns. */
const mostOfNews = 1.5

export async function agent(rounds: number, report: (row: Row) => void): Promise<void> {
  const us = await startOurs()
  const them = existsSync(llamaServer) ? await startLlamaServer(1, context) : null
  try {
    const [first, last]: [Sides<number[]>, Sides<number[]>] = [
      { ours: [], theirs: [] },
      { ours: [], theirs: [] },
    ]
    const alone: number[] = []
    for (let round = 0; round < rounds; round++) {
      for (const [name, side] of [['ours', us] as const, ['theirs', them] as const]) {
        if (!side) continue
        const times = await converse(side, round)
        // The first turn reads the instructions.
        first[name].push(median(times.slice(1, 1 + measured)))
        last[name].push(median(times.slice(-measured)))
      }
      alone.push(median(await onlyNews(us, round)))
    }
    const compare = (what: string, figures: Sides<number[]>, most?: number) =>
      them
        ? comparisonRow('agent', what, 'ms', figures, most === undefined ? {} : { most }, them.form)
        : singleRow('agent', what, 'ms', figures.ours, {})
    report(compare(`first token, turns 2 to ${measured + 1}`, first))
    report(compare(`first token, turns ${turns - measured + 1} to ${turns}`, last, 1))
    report(singleRow('agent', `first token of a prompt of ${news} tokens`, 'ms', alone, {}))
    const shares = last.ours.map((time, round) => time / alone[round]!)
    const what = `first token, turns ${turns - measured + 1} to ${turns}, in that of a prompt of ${news} tokens`
    report(singleRow('agent', what, '', shares, { most: mostOfNews }))
  } finally {
    await Promise.all([us.stop(), them?.stop()])
  }
}

/** Milliseconds to the first token of each turn. */
async function converse(side: Side, round: number): Promise<number[]> {
  const messages = [{ role: 'system', content: text(instructions, 500 + round) }]
  const times: number[] = []
  for (let turn = 0; turn < turns; turn++) {
    messages.push({ role: 'user', content: text(news, 10_000 * (round + 1) + turn) })
    const timing = await measure(side, 1, [
      { messages, ...sampling, ...noEndToken, temperature: 0, max_tokens: answer },
    ])
    times.push(firstTokens(timing)[0]!)
    // Both sides get the same text, though what it was generated as would be in their caches too.
    messages.push({ role: 'assistant', content: text(answer, 20_000 * (round + 1) + turn) })
  }
  return times
}

/** The same, of prompts that have a turn's tokens and nothing before them. */
async function onlyNews(side: Side, round: number): Promise<number[]> {
  const times: number[] = []
  for (let index = 0; index < measured; index++) {
    const messages = [{ role: 'user', content: text(news, 30_000 * (round + 1) + index) }]
    times.push(...firstTokens(await measure(side, 1, [{ messages, ...sampling, ...noEndToken, max_tokens: answer }])))
  }
  return times
}
