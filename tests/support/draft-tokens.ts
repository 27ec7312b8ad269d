// What a running engine has to draft answers from.
import { readFileSync } from 'node:fs'
import http from 'node:http'
import { text } from 'node:stream/consumers'

/** The models that the engine has loaded, with the number of tokens that it may draft the answers of each from. */
export async function draftTokens(enginePid: number): Promise<Record<string, number>> {
  const [, socketPath] = readFileSync(`/proc/${enginePid}/cmdline`, 'utf8').match(/unix:([^\0]+)/)!
  const response = await new Promise<http.IncomingMessage>((resolve, reject) =>
    http.get({ socketPath: socketPath!, path: '/v1/models' }, resolve).on('error', reject),
  )
  const { data } = JSON.parse(await text(response)) as { data: { id: string; draft_tokens: number }[] }
  return Object.fromEntries(data.map(({ id, draft_tokens }) => [id, draft_tokens]))
}
