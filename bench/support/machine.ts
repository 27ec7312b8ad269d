// What the machine is, and what it can do at most: printed beside the figures of a benchmark, which depend on both.
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '../..')

/** With all cores. Products of matrices: billions of operations a second. */
export interface Limits {
  read_gb_per_s: number
  float32: number
  bfloat16: number
  int8: number
}

/** Takes some seconds. Nothing else may run meanwhile. */
export function measureLimits(): Limits {
  const python = path.join(root, '.local/python/bin/python')
  return JSON.parse(execFileSync(python, ['-m', 'bench.support.machine'], { cwd: root, encoding: 'utf8' }))
}

export const limitsText = ({ read_gb_per_s, float32, bfloat16, int8 }: Limits) =>
  `This machine reads ${read_gb_per_s.toFixed(1)} GB/s and computes GFLOPS: ` +
  `${float32.toFixed(0)} in float32, ${bfloat16.toFixed(0)} in bfloat16, ${int8.toFixed(0)} in int8`

/** The machine and the versions that run on it. */
export function describeMachine() {
  const info = readFileSync('/proc/cpuinfo', 'utf8')
  const field = (name: string) => new RegExp(`^${name}\\s*:\\s*(.*)$`, 'm').exec(info)?.[1] ?? ''
  return {
    cpu: field('model name'),
    flags: field('flags')
      .split(' ')
      .filter((flag) => /^(avx|amx|fma|f16c|sse4|bmi2)/.test(flag)),
    threads: os.availableParallelism(),
    memory_gb: Math.round(os.totalmem() / 1e9),
    node: process.version,
    commit: execFileSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: root, encoding: 'utf8' }).trim(),
  }
}
