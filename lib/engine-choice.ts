// What computes the answers of text models: our own engine alone, or vLLM behind it.
import { existsSync, readdirSync } from 'node:fs'

export interface EngineChoice {
  /** The interpreter that has vLLM; null: our own engine computes. */
  vllm: string | null
  /** Why, as sentences for people. */
  why: string
  /** What is missing for what was asked for, and what to do. */
  problem: string | null
}

/** The settings that decide. */
export interface EngineSettings {
  engine: 'auto' | 'own' | 'vllm'
  vllm_python: string
}
/** What of the machine decides. */
interface Facts {
  hasGpu: boolean
  hasVllm: boolean
}

const install = 'run `npm run setup -- --with vllm`, or set TUNERY_VLLM_PYTHON to an interpreter that has it'

export function chooseEngine(
  { engine, vllm_python }: EngineSettings,
  { hasGpu, hasVllm }: Facts = { hasGpu: hasNvidiaGpu(), hasVllm: existsSync(vllm_python) },
): EngineChoice {
  const own = (why: string, problem: string | null = null): EngineChoice => ({ vllm: null, why, problem })
  const vllm = (why: string): EngineChoice => ({ vllm: vllm_python, why, problem: null })
  if (engine === 'own') return own('TUNERY_ENGINE is own.')
  if (engine === 'vllm' && hasVllm) return vllm('TUNERY_ENGINE is vllm.')
  if (engine === 'vllm')
    return own('vLLM is not there.', `TUNERY_ENGINE is 'vllm', but ${vllm_python} does not exist: ${install}.`)
  if (!hasGpu) return own('This machine has no NVIDIA GPU.')
  if (hasVllm) return vllm('This machine has an NVIDIA GPU and vLLM.')
  const missing = `This machine has an NVIDIA GPU, but no vLLM: ${install}.`
  return own(missing, missing)
}

const hasNvidiaGpu = () => readdirSync('/dev').some((name) => /^nvidia\d+$/.test(name))

/** The engine's options for its choice. */
export const vllmOptions = (
  { vllm }: EngineChoice,
  { vllm_options, training_may_pause_serving }: { vllm_options: string; training_may_pause_serving: boolean },
): string[] =>
  vllm === null
    ? []
    : [
        ...['--vllm', vllm],
        ...(vllm_options ? [`--vllm-options=${vllm_options}`] : []),
        ...(training_may_pause_serving ? ['--vllm-sleep'] : []),
      ]

/** What vLLM takes of a device beside weights and KV cache: its libraries, graphs and buffers. */
export const vllmOverhead_bytes = 3e9
/** The part of a device that its KV caches take at most. */
export const vllmCacheShare = 0.25

/** Splits at white space outside of quotes, as a shell does. Throws an Error for a quote that does not end. */
export function shellWords(text: string): string[] {
  const word = /(?:[^\s"']|"[^"]*"|'[^']*')+/g
  const quote = /["']/.exec(text.replace(word, ''))
  if (quote) throw new Error(`the quote ${quote[0]} does not end in '${text}'`)
  return (text.match(word) ?? []).map((part) => part.replace(/"([^"]*)"|'([^']*)'/g, '$1$2'))
}
