// Prefix cache: two requests with the same prefix of 1,000 tokens; time to first token of the second over the first.
import { firstTokens, measure } from '../job.ts'
import { text } from '../prompts.ts'
import { comparisonRow, type Row, singleRow } from '../rounds.ts'
import { noEndToken, type Side, sampling, startLlamaServer, startOurs } from '../servers.ts'

export async function prefix(rounds: number, report: (row: Row) => void): Promise<void> {
  const us = await startOurs()
  const them = await startLlamaServer(4, 2048)
  try {
    const body = (seed: number, question: string) => ({
      messages: [
        { role: 'system', content: text(1000, seed) },
        { role: 'user', content: question },
      ],
      ...sampling,
      ...noEndToken,
      max_tokens: 4,
    })
    const first = async (side: Side, seed: number, question: string) =>
      firstTokens(await measure(side, 1, [body(seed, question)]))[0]!
    const pair = async (side: Side, seed: number) => {
      const cold = await first(side, seed, 'What comes first here?')
      return { cold, warm: await first(side, seed, 'And which word is the last one?') }
    }
    for (const side of [us, them]) await pair(side, 1)
    const share = { ours: [] as number[], theirs: [] as number[] }
    const warm = { ours: [] as number[], theirs: [] as number[] }
    const cold: number[] = []
    for (let turn = 0; turn < rounds; turn++) {
      for (const [name, side] of [
        ['ours', us],
        ['theirs', them],
        ['theirs', them],
        ['ours', us],
      ] as const) {
        const times = await pair(side, 1000 + turn * 10 + share[name].length)
        share[name].push(times.warm / times.cold)
        warm[name].push(times.warm)
        if (name === 'ours') cold.push(times.cold)
      }
    }
    report(singleRow('prefix', 'second first token over the cold one', 'share', share.ours, { most: 0.15 }))
    report(comparisonRow('prefix', 'second first token', 'ms', warm, {}, them.form))
    report(singleRow('prefix', 'cold first token', 'ms', cold, {}))
  } finally {
    await Promise.all([us.stop(), them.stop()])
  }
}
