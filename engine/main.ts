// The engine's entry: serves base models and adapters of this machine's CPU behind OpenAI's protocol.
import { totalmem } from 'node:os'
import pino from 'pino'
import { createFairMutex, createMutex } from '../lib/mutex.ts'
import { parseCommandLine, usage } from './args.ts'
import { outputsFor } from './batching/batch.ts'
import { createHeadway } from './batching/headway.ts'
import type { StepStats } from './batching/runner.ts'
import type { Backend } from './batching/runner-pool.ts'
import { createScheduler } from './batching/scheduler.ts'
import { createBeside } from './batching/side-work.ts'
import type { MemoryLimits } from './batching/slot-sizes.ts'
import { createRests } from './batching/yielding.ts'
import { createEmbedder } from './embeddings/embedder.ts'
import { createGrammars } from './grammar/grammars.ts'
import { createLeftUsage } from './http/aborted-usage.ts'
import { keyVariable, readApiKeys } from './http/api-keys.ts'
import { createMetrics } from './http/metrics.ts'
import { type Scoring, scoringWaitingMax, tooManyScorings } from './http/routes/score.ts'
import { createHttpServer, listen } from './http/server.ts'
import { type ContextOptions, createContext, createContextAside, createThreadpool } from './llama/context.ts'
import { loadFastest } from './llama/eight-bit-weights.ts'
import { openLibrary, returnLargeBlocks } from './llama/library.ts'
import { loadModel } from './llama/model.ts'
import { createAdapters } from './models/adapters.ts'
import { createModels, type ServedModel } from './models/models.ts'
import { createTokenizer } from './tokenizer/tokenizer.ts'

const idleCloseMs = 50

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
  const access = 'port' in args.listen ? { keys: readApiKeys(args.api_key_file, process.env) } : null

  returnLargeBlocks()
  const library = openLibrary(args.lib)
  const threadpool = createThreadpool(library, args.threads)
  const limits: MemoryLimits = {
    slots: args.slots,
    lane_bytes: Math.floor(totalmem() / 8),
    total_bytes: Math.floor(totalmem() / 4),
  }
  // Of the memory, a quarter may hold the caches of requests and an eighth adapters; the weights of bases come on top.
  const adapters = createAdapters(library, Math.floor(totalmem() / 8))
  type Options = Omit<ContextOptions, 'threads' | 'threadpool' | 'adapter' | 'onFree'>
  const withAdapter = (served: ServedModel, options: Options): ContextOptions => {
    const { adapter } = served
    const pointer = adapter ? adapters.hold(adapter) : null
    return {
      ...options,
      threads: args.threads,
      threadpool,
      adapter: pointer,
      onFree: () => adapter && adapters.letGo(adapter),
    }
  }
  // Reading or freeing an adapter changes a list of the model that a context which is being made goes through on its
  // own thread.
  const inTurn = createMutex()
  const makeContext = (served: ServedModel, options: Options) =>
    createContext(library, served.model, withAdapter(served, options))
  const makeContextAside = (served: ServedModel, options: Options) =>
    inTurn(() => createContextAside(library, served.model, withAdapter(served, options)))
  const laneOptions = (sequences: number, tokens_per_sequence: number, batch_tokens: number) => ({
    sequences,
    tokens_per_sequence,
    batch_tokens,
    outputs: outputsFor(sequences),
  })
  const backend: Backend = {
    makeContext: (served, ...sizes) => makeContext(served, laneOptions(...sizes)),
    makeContextAside: (served, ...sizes) => makeContextAside(served, laneOptions(...sizes)),
    adapters: adapters.count,
    speculate: args.speculation,
  }
  const grammars = createGrammars()
  const rests = createRests()
  const headway = createHeadway()
  const beside = createBeside(() => scheduler.counts().running > 0)
  const embedder = createEmbedder(
    (served, shape) => makeContextAside(served, { ...shape, embeddings: true }),
    rests,
    headway,
    beside,
  )
  const onFault = (error: unknown, model?: string) => log.error({ err: error, model }, 'fault')
  const onStep = (stats: StepStats) => {
    metrics.step(stats)
    // A step in which all wait for their masks is none.
    if (stats.seconds > 0 || stats.output_tokens > 0) headway.note()
  }
  const scheduler = createScheduler(backend, limits, rests, { onStep, onFault, onBusy: headway.begin })
  const load = async (path: string) => {
    const model = await (args.eight_bits ? loadFastest(library, path, args.threads) : loadModel(library, path))
    model.parse_control_tokens = args.parse_control_tokens
    return model
  }
  const tokenizer = createTokenizer(headway.note, headway.begin)
  const models = createModels(library, load, adapters, inTurn, async (served) => {
    await embedder.release(served)
    await scheduler.release(served)
  })
  const countModels = () => {
    const adapters = models.list().filter((served) => served.base_name !== null).length
    return { bases: models.list().length - adapters, adapters }
  }
  const metrics = createMetrics(() => scheduler.counts(), countModels)

  for (const { name, path } of args.models) await models.loadBase(name, path)
  for (const { name, path } of args.adapters) await models.loadAdapter(name, path, args.models[0]!.name)

  let stopping = false
  const scoring: Scoring = (served, tokens_per_sequence, outputs) =>
    makeContextAside(served, { sequences: 1, tokens_per_sequence, batch_tokens: outputs, outputs })
  const left = createLeftUsage()
  const isStopping = () => stopping
  const server = createHttpServer(
    {
      models,
      scheduler,
      grammars,
      embedder,
      tokenizer,
      limits,
      left,
      metrics,
      scoring,
      scoringMutex: createFairMutex({ waiting_max: scoringWaitingMax, tooMany: tooManyScorings }),
      beside,
      rests,
      headway,
      onFault,
      isStopping,
    },
    access,
  )
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
    }, args.grace_ms)
  }
  process.on('SIGTERM', stop)
  // One that a service started obeys that alone: what a terminal sends goes to the whole process group.
  if (!args.parent_pipe) process.on('SIGINT', stop)

  if (access && !access.keys)
    log.warn(
      `No API key is set: whoever reaches ${address} may call the model. --api-key-file or ${keyVariable} sets one.`,
    )
  log.info(
    {
      address,
      threads: args.threads,
      library: library.llama_version(),
      models: models.list().map((served) => served.name),
    },
    'listening',
  )
  process.stdout.write(`${JSON.stringify({ event: 'listening', address })}\n`)
}

/**
 * Ends the process when the parent's end of standard input closes, however the parent died: no engine outlives its
 * server.
 */
function exitWithParent(): void {
  const exit = () => process.exit(0)
  process.stdin.on('end', exit).on('close', exit).on('error', exit).resume()
}
