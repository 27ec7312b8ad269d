// The weights of the current step in the engine, which samples with them.
import { rm } from 'node:fs/promises'
import path from 'node:path'
import type { EngineClient, Target } from '../../serving/index.ts'
import type { PolicyTrainer } from './policy-trainer.ts'

/** Weights that sample, and the hash of their file. */
export type PolicyTarget = Target & { sha256: string }

interface Options {
  trainer: Pick<PolicyTrainer, 'saveWeights'>
  engine: Pick<EngineClient, 'unload'>
  /** The weights below the adapter, as the engine loads them. */
  base: Target['base']
  /** Where the engine's files are written. */
  folder: string
  /** Begins the name of each step's adapter, which no other attempt has. */
  id: string
}

export class ServedPolicy {
  private readonly options: Options
  /** How long the last `load` took. */
  load_seconds = 0
  private loaded: { target: PolicyTarget; folder: string } | undefined

  constructor(options: Options) {
    this.options = options
  }

  /** Throws before the first `load`, and after `drop`. */
  get target(): PolicyTarget {
    if (!this.loaded) throw new Error('no weights have been saved for the engine')
    return this.loaded.target
  }

  /** Has the engine sample with the trainer's weights, and drops those of the step before. */
  async load(step: number): Promise<void> {
    const { trainer, base, id } = this.options
    const began = performance.now()
    const folder = path.join(this.options.folder, `step-${step}`)
    const { gguf, sha256 } = await trainer.saveWeights(folder)
    await this.drop()
    this.loaded = { target: { base, adapter: { id: `${id}.${step}`, gguf }, sha256 }, folder }
    this.load_seconds = (performance.now() - began) / 1000
  }

  async drop(): Promise<void> {
    const { loaded } = this
    this.loaded = undefined
    if (!loaded) return
    await this.options.engine.unload(loaded.target).catch(() => {})
    await rm(loaded.folder, { recursive: true, force: true })
  }
}
