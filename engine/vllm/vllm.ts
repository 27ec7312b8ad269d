// vLLM as what computes the bases whose checkpoint is on this machine. All before and behind the tokens stays ours.
import { createHash } from 'node:crypto'
import type { Logger } from 'pino'
import type { Model } from '../llama/model.ts'
import type { FileHashes, LoadedFile } from '../models/file-hashes.ts'
import type { OpenedFile, ServedModel } from '../models/models.ts'
import type { TokenLogprobs } from '../sampling/logprobs.ts'
import { VllmBase, type VllmOptions } from './base.ts'
import { weightFiles } from './placement.ts'
import { Asleep } from './sleep.ts'

interface Options extends VllmOptions {
  /** Reads the vocabulary of a base's file. */
  openVocab(path: string): Promise<Model>
  closeVocab(model: Model): void
  hashes: FileHashes
  log: Logger
}

/** Opens a base in vLLM. Resolves with vLLM's reason where it cannot serve the base. Throws Asleep. */
export async function openInVllm(path: string, checkpoint: string, options: Options): Promise<OpenedFile | string> {
  const { openVocab, closeVocab, hashes, log } = options
  const model = await openVocab(path)
  try {
    const remote = await VllmBase.start(model, checkpoint, options)
    model.remote_context_length = remote.context_length
    model.weight_bytes = remote.weight_bytes
    return { model, file: fileOf(weightFiles(checkpoint), hashes), remote }
  } catch (error) {
    closeVocab(model)
    // Our own engine would take the memory that a training has claimed.
    if (error instanceof Asleep || options.stopping.aborted) throw error
    const reason = (error as Error).message
    log.error({ path, checkpoint, reason }, 'vLLM cannot serve this base: our own engine does')
    return reason
  }
}

/** The log-probabilities of a prompt where vLLM computes the model; null elsewhere. */
export function vllmLogprobs(
  served: ServedModel,
  tokens: readonly number[],
  top: number,
  signal: AbortSignal,
): Promise<TokenLogprobs[]> | null {
  if (!(served.remote instanceof VllmBase)) return null
  return served.remote.promptLogprobs(served.base_name === null ? null : served.name, tokens, top, signal)
}

/** Files that are loaded together: one has its own hash, several that of their hashes. */
export function fileOf(paths: readonly string[], hashes: FileHashes): LoadedFile {
  const files = paths.map((path) => hashes.of(path))
  if (files.length === 1) return files[0]!
  return {
    get hash() {
      const unready = files.find(({ hash }) => hash === 'sha256:pending' || hash === 'sha256:unknown')
      if (unready) return unready.hash
      const all = createHash('sha256')
      for (const { hash } of files) all.update(`${hash}\n`)
      return `sha256:${all.digest('hex').slice(0, 16)}`
    },
  }
}

/** How a base sleeps: the job whose training has its memory. Undefined where vLLM does not compute the model. */
export const sleepOf = ({ remote }: ServedModel) =>
  remote instanceof VllmBase
    ? { asleep_for: remote.asleep_for, devices: remote.devices, device_bytes: remote.device_bytes }
    : undefined
