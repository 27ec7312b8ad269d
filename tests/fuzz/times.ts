// Every string field of every route gets long hostile texts, one at a time. No answer may take longer than 5 s, and
// none may hold the event loop of the service, by its own watch.
import { blockedSeconds, blockedSince } from '../support/blocked.ts'
import { tiny } from '../support/tiny.ts'
import { startFurnished } from './furnish.ts'
import { createMaker, hostileTexts, type Operation, operationsOf } from './hostile-texts.ts'

/** Longest answer. The service's own limits on readers, compilers and threads are below it. */
const limit_ms = 5000
/** In paths and queries the headers' limit allows less. */
const lengths = { body: 100_000, address: 6000 }
/** Failures of one operation after which the rest of its requests is left out. */
const failures_max = 5
/** These run a trainer, take back the run's own key, or end what the rest needs. */
const left_out =
  /\/estimate$|^DELETE |\/sign-out|\/sessions|\/password|\/operator\/|\/setup\/retry|\/rotate|\/(cancel|complete)$/

/** Sends the texts to all routes whose name matches; returns the number of requests and what went wrong. */
export async function fuzzTimes(only = ''): Promise<{ made: number; failures: string[] }> {
  const { service, known, sessions } = await startFurnished()
  const { name: cookie, token, csrf } = sessions.all!
  const credentials = {
    key: { authorization: `Bearer ${service.key}` },
    session: { cookie: `${cookie}=${token}`, 'x-csrf-token': csrf },
  }
  const failures: string[] = []
  let made = 0
  try {
    // Fields of bodies that hold an id, or an address.
    const names = { ...known, model: tiny, model_id: tiny, dataset: known.dataset_id, url: 'https://example.com/hook' }
    const ids = { ...names, model_id: known.model_id, checkpoint: known.model_id }
    const document = await (await fetch(`${service.url}/openapi.json`)).json()
    const maker = createMaker(document, names)
    for (const operation of operationsOf(document)) {
      const name = `${operation.method} ${operation.path}`
      if (left_out.test(name) || !name.includes(only)) continue
      const before = await blockedSeconds(service.url)
      const began = { at: performance.now(), made, failures: failures.length }
      const statuses: Record<number, number> = {}
      for (const [address, body] of requestsOf(operation, maker, ids)) {
        // What fails here may take its longest each time: the run must end.
        if (failures.length - began.failures >= failures_max) break
        made++
        const sent = performance.now()
        const what = `${operation.method} ${address.slice(0, 80)} ${body?.slice(0, 120)}`
        try {
          const response = await fetch(service.url + address, {
            method: operation.method,
            headers: {
              ...credentials[operation.bySession ? 'session' : 'key'],
              ...(body && { 'content-type': 'application/json' }),
            },
            body: body ?? null,
            signal: AbortSignal.timeout(limit_ms),
          })
          if (response.headers.get('content-type')?.includes('event-stream')) await response.body?.cancel()
          else await response.arrayBuffer()
          statuses[response.status] = (statuses[response.status] ?? 0) + 1
          if (response.status === 500) failures.push(`500: ${what}`)
        } catch (error) {
          const took = Math.round(performance.now() - sent)
          failures.push(`${(error as Error).name} after ${took} ms: ${what}`)
        }
      }
      // The watch reports two beats later.
      await new Promise((resolve) => setTimeout(resolve, 300))
      const blocked = await blockedSince(before, service.url)
      const took_s = (performance.now() - began.at) / 1000
      console.log(`${name}: ${made - began.made} requests in ${took_s.toFixed(1)} s, ${JSON.stringify(statuses)}`)
      if (blocked) failures.push(`the event loop was blocked by ${name}: ${blocked}; the log above has the stack`)
    }
  } finally {
    await service.stop()
  }
  return { made, failures }
}

/** The requests of an operation that have a hostile text in one place each. */
function* requestsOf(
  { path, parameters, body }: Operation,
  { plain, withText }: ReturnType<typeof createMaker>,
  ids: Record<string, unknown>,
): Generator<[address: string, body: string | undefined]> {
  const inPath = (text?: string) =>
    path.replaceAll(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(text ?? String(ids[name] ?? 'x')))
  const sent = body && JSON.stringify(plain(body))
  for (const text of hostileTexts(lengths.address / 3)) {
    if (encodeURIComponent(text.slice(0, 9)).length > 27 || !text.isWellFormed()) continue
    if (path.includes('{')) yield [inPath(text), sent]
    for (const { name, in: place } of parameters)
      if (place === 'query') yield [`${inPath()}?${new URLSearchParams({ [name]: text })}`, sent]
  }
  if (!body) return
  for (const text of hostileTexts(lengths.body))
    for (const value of withText(body, text)) yield [inPath(), JSON.stringify(value)]
}
