// What things cost: our own figures, read from the records in docs/performance, and assumptions about vLLM on a GPU,
// each with its source.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { root } from '../../lib/root.ts'

export interface Cost {
  name: string
  value: number
  unit: string
  source: string
  /** Ours: a record of docs/performance. The others are assumptions. */
  measured: boolean
}

interface Recorded {
  topic: string
  claim: string
  machine?: string
  /** Picks the number out of the record's figure; default: its first. */
  pattern?: RegExp
}

/** The number of a record. Throws an Error where the record is gone or has no number, so that no figure outlives it. */
export function recorded({ topic, claim, machine, pattern = /([\d,.]*\d)/ }: Recorded): { value: number; at: string } {
  const file = `docs/performance/${topic}.json`
  const { records } = JSON.parse(readFileSync(path.join(root, file), 'utf8')) as {
    records: { claim: string; figure: string; machine: string; date: string }[]
  }
  const record = records.find((one) => one.claim === claim && (!machine || one.machine === machine))
  const number = record && pattern.exec(record.figure)?.[1]
  if (!number)
    throw new Error(`${file} has no record "${claim}"${machine ? ` of machine ${machine}` : ''} with a number.`)
  return { value: Number(number.replaceAll(',', '')), at: `${topic}.json, ${record.machine}, ${record.date}` }
}

export interface Costs {
  /**
   * A step of vLLM: `base` + `sequence` for each sequence + `prompt` for each prompt token + `adapter` for each one.
   */
  step: { base_ms: number; sequence_ms: number; prompt_ms: number; adapter_ms: number; lora_factor: number }
  /** An adapter that is not in host memory is read from disk; one that is not in a slot of the GPU is copied. */
  load: { disk_ms: number; copy_ms: number }
  slots: number
  host_adapters: number
  sequences: number
  batch_tokens: number
  replica_start_s: number
  adapter_mb: number
  gateway_requests: number
  event_ms: number
  redis_scripts: number
  usage_rows: number
  usage_row_bytes: number
  creating_requests: number
  train_tokens: number
  train_start_s: number
}

/** What the documentation states without a record of its own. */
const scalePage = 'docs/guides/scale.md, measured there'

export function readCosts(): { costs: Costs; list: Cost[] } {
  const list: Cost[] = []
  const ours = (name: string, unit: string, record: Recorded) => {
    const { value, at } = recorded(record)
    list.push({ name, value, unit, source: at, measured: true })
    return value
  }
  const stated = (name: string, value: number, unit: string, source: string) => {
    list.push({ name, value, unit, source, measured: true })
    return value
  }
  const assumed = (name: string, value: number, unit: string, source: string) => {
    list.push({ name, value, unit, source, measured: false })
    return value
  }
  const costs: Costs = {
    gateway_requests: ours('requests of one server process, with Redis on the same machine', 'a second', {
      topic: 'many',
      claim: 'requests a second at 32 clients, with Redis on the same machine',
    }),
    train_tokens: ours('training of a 7B base on an H100', 'tokens/s', {
      topic: 'training-on-a-gpu',
      claim: 'Qwen2.5-7B, 2 × 1,024, tokens/s (GPU memory)',
    }),
    event_ms: stated('an event of a stream at a server process', 0.01, 'ms', 'docs/request-costs.md'),
    redis_scripts: stated('scripts of one core of Redis', 70_000, 'a second', 'many.json'),
    usage_rows: stated('rows of usage that Postgres takes in turn', 5_700, 'a second', scalePage),
    usage_row_bytes: stated('a row of usage with its indexes', 255, 'bytes', scalePage),
    creating_requests: stated('creating requests of all servers, in turn', 300, 'a second', scalePage),
    step: {
      base_ms: assumed(
        'a step of vLLM with one sequence, Llama 3.1 8B on an H100',
        6.4,
        'ms',
        'yobitelcomm.github.io/bench, vLLM 0.21: 6.48 ms a token at one client',
      ),
      sequence_ms: assumed(
        'more for each further sequence',
        0.04,
        'ms',
        'LambdaLabsML/vllm-benchmark: 25.57 ms a token with 256 sequences, prompts included',
      ),
      prompt_ms: assumed('a prompt token', 0.032, 'ms', '16 GFLOP at half of the 990 TFLOPS of an H100'),
      adapter_ms: assumed('reading one adapter in a step', 0.025, 'ms', '84 MB at 3.35 TB/s'),
      lora_factor: assumed(
        'speed with adapters, of that without',
        0.85,
        '',
        'vllm PR 15655: 0.76 to 0.92 for Llama 3.1 8B (on a TPU); PRs 11267 and 11613: 0.96 on an A100',
      ),
    },
    load: {
      disk_ms: assumed(
        'an adapter from disk to host memory',
        100,
        'ms',
        'gigagpu.com/vllm-multi-lora-deployment: 50 to 200 ms; lorax issue 433: 500 ms and more',
      ),
      copy_ms: assumed(
        'an adapter from host memory to a slot, while the batch stands still',
        20,
        'ms',
        'gigagpu.com/vllm-multi-lora-deployment: about 20 ms; vllm PR 31941: before the prompt is read',
      ),
    },
    slots: assumed('slots of a replica for adapters (max_loras)', 64, '', "the operator's choice; vLLM's default is 1"),
    host_adapters: assumed(
      'adapters in host memory of a replica (max_cpu_loras)',
      512,
      '',
      "43 GB; the operator's choice",
    ),
    sequences: assumed('sequences of a replica at once (max_num_seqs)', 256, '', "vLLM's default of v0.6"),
    batch_tokens: assumed('tokens of a step (max_num_batched_tokens)', 8192, '', "vLLM's default for an H100"),
    replica_start_s: assumed(
      'start of a replica, weights and compiled code on the machine',
      82,
      's',
      'tensorfuse.io/docs/blogs/reducing_gpu_cold_start: 294 s without, 82 s with caches (L40S)',
    ),
    adapter_mb: assumed(
      'an adapter of rank 16 on all linear layers of an 8B',
      84,
      'MB',
      '41.9 million weights of 2 bytes',
    ),
    train_start_s: assumed('a training before its first step, on a machine of the cluster', 60, 's', 'estimated'),
  }
  return { costs, list }
}
