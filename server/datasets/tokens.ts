// What a dataset is in tokens: counted by the trainer's own code, in a process of its own, so that the figures are the trainer's.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { ApiError } from '../../contract/errors.ts'
import { root } from '../config.ts'

const run = promisify(execFile)
const timeout_ms = 600_000

export interface TokenCount {
  rows: number
  tokens: number
  longest: number
  max_length: number
  cut_rows: number
  cut_tokens: number
  histogram: { up_to: number | null; rows: number }[]
  cut: { row: number; tokens: number; cut_tokens: number }[]
}

export interface Preview {
  messages: { role: string; content: string }[]
  sequences: { tokens: { id: number; text: string; trained: boolean }[]; cut_tokens: number }[]
}

interface Request {
  hf: string
  rows: string
  max_length: number
}

export interface Tokens {
  count(request: Request): Promise<TokenCount>
  /** Undefined where there is no such row. */
  preview(request: Request & { row: number }): Promise<Preview | undefined>
}

export function createTokens(python: string): Tokens {
  async function ask<T>(request: Request): Promise<T> {
    const { stdout } = await run(python, ['-m', 'trainer.count', JSON.stringify(request)], { cwd: root, timeout: timeout_ms, maxBuffer: 1 << 28 })
    const found = JSON.parse(stdout) as T & { problem?: string }
    if (found.problem) throw new ApiError('dataset_invalid', found.problem)
    return found
  }
  return {
    count: (request) => ask<TokenCount>(request),
    async preview(request) {
      const found = await ask<Preview & { missing?: true }>(request)
      return found.missing ? undefined : found
    },
  }
}
