// Parses TUNERY_UPSTREAMS: OpenAI-compatible servers that serve base models instead of, or in addition to, our engine.
import { readFileSync } from 'node:fs'
import { z } from 'zod'
import { fileProblem } from '../../../../lib/file-problem.ts'
import { ConfigError } from '../../../config.ts'

const setting = 'TUNERY_UPSTREAMS'

const Upstream = z
  .strictObject({
    model: z.string().regex(/^[\w.-]+(\/[\w.-]+)?$/, 'must be the id of a model, such as Qwen/Qwen2.5-7B-Instruct'),
    url: z.url({ protocol: /^https?$/, error: 'must be an http or https address, such as http://127.0.0.1:8001' }),
    kind: z.enum(['vllm', 'openai']),
    upstream_model: z.string().min(1).optional(),
    api_key: z.string().min(1).optional(),
    api_key_env: z.string().min(1).optional(),
    adapters: z.boolean().default(false),
    adapter_root: z.string().startsWith('/', 'must be an absolute path').optional(),
    max_concurrent: z.int().min(1).default(256),
    connect_seconds: z.number().min(0.1).max(600).default(5),
    first_byte_seconds: z.number().min(0.1).max(86_400).default(120),
    between_bytes_seconds: z.number().min(0.1).max(86_400).default(60),
    also_local: z.boolean().default(false),
    fetch_images: z.boolean().default(false),
  })
  .refine(({ kind, adapters }) => kind === 'vllm' || !adapters, {
    path: ['adapters'],
    error: "needs kind 'vllm': others cannot load adapters while they run",
  })
  .refine(({ api_key, api_key_env }) => !api_key || !api_key_env, {
    path: ['api_key_env'],
    error: 'cannot be combined with api_key',
  })

/** One server that serves one base model. */
export interface UpstreamSettings {
  /** The id that clients use. */
  model: string
  /** The name on the upstream. */
  upstream_model: string
  kind: 'vllm' | 'openai'
  /** Base URL, including `/v1`. */
  url: URL
  api_key: string | undefined
  /** Whether it loads adapters at run time. */
  adapters: boolean
  /** Path of this service's models folder on the upstream; undefined if it is the same there. */
  adapter_root: string | undefined
  max_concurrent: number
  /** How long a connection may take. */
  connect_seconds: number
  /** How long the server may take to begin an answer to a short prompt; see time-limits.ts. */
  first_byte_seconds: number
  /** How long it may be silent in the middle of an answer. */
  between_bytes_seconds: number
  /** Whether our own engine serves the model too. */
  also_local: boolean
  /** Whether clients may send image URLs, which the upstream then fetches. */
  fetch_images: boolean
}

/** Reads the setting: JSON text, or the path of a JSON file. Throws a ConfigError that names the entry and problem. */
export function readUpstreams(value: string | undefined, env: NodeJS.ProcessEnv): UpstreamSettings[] {
  if (value === undefined) return []
  const result = z.array(Upstream).safeParse(parse(value))
  if (!result.success) {
    const problems = result.error.issues.map((issue) => `${locationOf(issue.path)} ${issue.message}`)
    throw new ConfigError(`${setting}: ${problems.join('; ')}. docs/upstreams.md has examples.`)
  }
  return result.data.map((entry, index) => {
    const { api_key_env, url, ...rest } = entry
    if (api_key_env && !env[api_key_env])
      throw new ConfigError(
        `${setting}: entry ${index} takes its key from the variable ${api_key_env}, which is not set. ` +
          'Set it, or leave api_key_env out.',
      )
    return {
      ...rest,
      upstream_model: entry.upstream_model ?? entry.model,
      api_key: api_key_env ? env[api_key_env] : entry.api_key,
      url: new URL(`${url.replace(/(?<!\/)\/+$/, '').replace(/\/v1$/, '')}/v1`),
      adapter_root: entry.adapter_root,
    }
  })
}

function parse(value: string): unknown {
  const inline = value.trimStart().startsWith('[')
  let text = value
  if (!inline)
    try {
      text = readFileSync(value, 'utf8')
    } catch (error) {
      throw new ConfigError(
        `${setting} names the file ${value}, which ${fileProblem(value, error)}. Give a path, or a JSON list.`,
      )
    }
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new ConfigError(`${setting}${inline ? '' : ` (${value})`} is not valid JSON: ${(error as Error).message}.`)
  }
}

const locationOf = ([index, ...path]: PropertyKey[]) =>
  index === undefined ? 'it' : `entry ${String(index)}${path.length > 0 ? `, '${path.map(String).join('.')}':` : ''}`
