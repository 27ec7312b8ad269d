// This machine's engine: its process, its client and its health in one.
import type { Logger } from 'pino'
import { chooseEngine, vllmOptions } from '../../../../lib/engine-choice.ts'
import { type Config, ConfigError } from '../../../config.ts'
import { EngineClient } from './client.ts'
import { createEngineHealth } from './health.ts'
import { createEngineProcess, engineOptions } from './process.ts'
import { ServingSleep } from './sleep.ts'
import type { WeightFiles } from './weight-files.ts'

export type Engine = ReturnType<typeof createEngine>

interface Options {
  config: Config
  dataDir: string
  /** Threads of its library. */
  threads: number
  files: WeightFiles
  log: Logger
}

/** Starts nothing yet. Throws a ConfigError if vLLM is wanted and not there. */
export function createEngine({ config, dataDir, threads, files, log }: Options) {
  const choice = chooseEngine(config)
  if (config.engine === 'vllm' && choice.problem) throw new ConfigError(choice.problem)
  const options = [...engineOptions(config), ...vllmOptions(choice, config)]
  const process = createEngineProcess({ dataDir, threads, options, onStart: (started) => sleep.begin(started), log })
  const client = new EngineClient(process, log, files)
  const sleep = new ServingSleep(process, client, log)
  const health = createEngineHealth(process, client, log)
  /** Replicas of deployments on the same cores. */
  const others = new Set<Pick<EngineClient, 'yieldCores'>>()
  return {
    client,
    sleep,
    /** What computes, and why. */
    choice,
    /** Starts it ahead of the first request. */
    start: () => process.instance(),
    stop: () => process.stop(),
    pid: () => process.current()?.pid,
    async yieldCores(share: number, for_ms: number) {
      await Promise.all([client, ...others].map((engine) => engine.yieldCores(share, for_ms)))
    },
    /** Another engine that yields its cores too, until the function that is returned is called. */
    yieldsToo(other: Pick<EngineClient, 'yieldCores'>) {
      others.add(other)
      return () => void others.delete(other)
    },
    read: (path: string) => client.read(path),
    /** Why it cannot answer, or undefined. */
    problem: async () => process.problem() ?? (await health.problem()),
    watchHealth: health.watch,
  }
}
