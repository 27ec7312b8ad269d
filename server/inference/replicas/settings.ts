// What the operator says about upstreams: servers of the OpenAI protocol that serve base models in place of, or beside,
// the own engine.
import { readFileSync } from 'node:fs'
import { z } from 'zod'
import { ConfigError } from '../../config.ts'

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
    also_local: z.boolean().default(false),
    fetch_images: z.boolean().default(false),
  })
  .refine(({ kind, adapters }) => kind === 'vllm' || !adapters, {
    path: ['adapters'],
    error: "needs kind 'vllm': others cannot load adapters while they run",
  })
  .refine(({ api_key, api_key_env }) => !api_key || !api_key_env, {
    path: ['api_key_env'],
    error: 'may not stand beside api_key',
  })

/** One server that serves one base model. */
export interface UpstreamSettings {
  /** The id that clients know the model by, and its name there. */
  model: string
  upstream_model: string
  kind: 'vllm' | 'openai'
  /** The address up to and with `/v1`. */
  url: URL
  api_key: string | undefined
  /** Whether it loads adapters at run time. */
  adapters: boolean
  /**
   * The folder that the server sees the models' folder of this service as; undefined where the paths are the same
   * there.
   */
  adapter_root: string | undefined
  max_concurrent: number
  /** Whether the own engine serves the model too. */
  also_local: boolean
  /** Whether clients may give it addresses to fetch images from. */
  fetch_images: boolean
}

/**
 * Reads the setting: JSON text, or the path of a file of it. Throws a ConfigError that says what is wrong in which
 * entry.
 */
export function readUpstreams(given: string | undefined, env: NodeJS.ProcessEnv): UpstreamSettings[] {
  if (given === undefined) return []
  const result = z.array(Upstream).safeParse(parse(given))
  if (!result.success) {
    const problems = result.error.issues.map((issue) => `${place(issue.path)} ${issue.message}`)
    throw new ConfigError(`${setting}: ${problems.join('; ')}. docs/upstreams.md has examples.`)
  }
  return result.data.map((entry, index) => {
    const { api_key_env, url, ...rest } = entry
    if (api_key_env && !env[api_key_env])
      throw new ConfigError(
        `${setting}: entry ${index} takes its key from the variable ${api_key_env}, which is not set. Set it, or leave api_key_env out.`,
      )
    return {
      ...rest,
      upstream_model: entry.upstream_model ?? entry.model,
      api_key: api_key_env ? env[api_key_env] : entry.api_key,
      url: new URL(`${url.replace(/\/+$/, '').replace(/\/v1$/, '')}/v1`),
      adapter_root: entry.adapter_root,
    }
  })
}

function parse(given: string): unknown {
  const inline = given.trimStart().startsWith('[')
  let text = given
  if (!inline)
    try {
      text = readFileSync(given, 'utf8')
    } catch (error) {
      throw new ConfigError(
        `${setting} names the file ${given}, which cannot be read: ${(error as Error).message}. Give a path, or a JSON list.`,
      )
    }
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new ConfigError(`${setting}${inline ? '' : ` (${given})`} is not valid JSON: ${(error as Error).message}.`)
  }
}

const place = ([index, ...path]: PropertyKey[]) =>
  index === undefined ? 'it' : `entry ${String(index)}${path.length > 0 ? `, '${path.map(String).join('.')}':` : ''}`
