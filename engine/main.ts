// The engine's entry: serves base models and adapters of this machine's CPU behind OpenAI's protocol.
import { totalmem } from 'node:os'
import pino from 'pino'
import { parseCommandLine, usage } from './args.ts'
import { createHttpServer } from './http.ts'
import { createLanePool } from './lane-pool.ts'
import type { MemoryLimits } from './lane-sizes.ts'
import { listen } from './listen.ts'
import { createContext } from './llama/context.ts'
import { openLibrary } from './llama/library.ts'
import { createSampler, freeSampler } from './llama/sampler.ts'
import { createThreadpool } from './llama/threadpool.ts'
import { createMetrics } from './metrics.ts'
import { createModels } from './models.ts'
import { createScheduler } from './scheduler.ts'
import type { MakeScoringContext } from './score.ts'
import type { ServedModel } from './served-model.ts'

const stopMsMax = 10_000
const idleCloseMs = 50
const mebibyte = 1024 * 1024

const log = pino({ base: { process: 'engine' } }, pino.destination({ dest: 2, sync: true }))

try {
  await main()
} catch (error) {
  log.fatal({ usage }, (error as Error).message)
  process.exit(1)
}

async function main(): Promise<void> {
  const args = parseCommandLine(process.argv.slice(2))
  if (args.parent_pipe) exitWithParent()

  const library = openLibrary(args.lib)
  const threadpool = createThreadpool(library, args.threads)
  const limits: MemoryLimits = {
    short_slots: args.slots,
    short_lane_bytes: 1024 * mebibyte,
    long_lane_bytes: 1024 * mebibyte,
    total_bytes: Math.floor(totalmem() / 4),
  }
  const makeContext = (served: ServedModel, sequences: number, tokens_per_sequence: number, batch_tokens: number, outputs?: number) =>
    createContext(library, served.model, { sequences, tokens_per_sequence, batch_tokens, threads: args.threads, threadpool, adapter: served.adapter, outputs })
  const pool = createLanePool(
    {
      makeContext,
      makeSampler: (params) => createSampler(library, params),
      freeSampler: (sampler) => freeSampler(library, sampler),
    },
    limits,
  )
  const onFault = (error: unknown, model?: string) => log.error({ err: error, model }, 'fault')
  const scheduler = createScheduler(pool, { onStep: (stats) => metrics.step(stats), onFault })
  const models = createModels(library, (served) => scheduler.release(served))
  const countModels = () => {
    const adapters = models.list().filter((served) => served.base_name !== null).length
    return { bases: models.list().length - adapters, adapters }
  }
  const metrics = createMetrics(() => scheduler.counts(), countModels)

  for (const { name, path } of args.models) await models.loadBase(name, path)

  let stopping = false
  const makeScoringContext: MakeScoringContext = (served, tokens, outputs) => makeContext(served, 1, tokens, outputs, outputs)
  const server = createHttpServer({ models, scheduler, limits, metrics, makeScoringContext, onFault, isStopping: () => stopping })
  const address = await listen(server, args.listen)

  const stop = (signal: string) => {
    if (stopping) return
    stopping = true
    log.info({ signal }, 'stopping')
    server.close(() => process.exit(0))
    // A connection whose last answer has just ended counts as open until it is closed.
    setInterval(() => server.closeIdleConnections(), idleCloseMs)
    // What still streams after the grace ends with an error that its client can read.
    setTimeout(() => {
      for (const served of models.list()) served.closing.abort()
      setImmediate(() => process.exit(0))
    }, stopMsMax)
  }
  process.on('SIGTERM', stop)
  process.on('SIGINT', stop)

  log.info({ address, threads: args.threads, library: library.llama_version(), models: models.list().map((served) => served.name) }, 'listening')
  process.stdout.write(`${JSON.stringify({ event: 'listening', address })}\n`)
}

/** Ends the process when the parent's end of standard input closes, however the parent died: no engine outlives its server. */
function exitWithParent(): void {
  const exit = () => process.exit(0)
  process.stdin.on('end', exit).on('close', exit).on('error', exit).resume()
}
