// The kinds of values that settings have: how their text is read, and what is wrong with it.
import path from 'node:path'
import { z } from 'zod'
import { isNetwork } from '../../lib/connections.ts'
import { shellWords } from '../../lib/engine-choice.ts'
import { parseStorageUrl } from '../../lib/storage-url.ts'

export const text = z.string().min(1)
export const folder = text.transform((value) => path.resolve(value))
export const wholeNumber = (min: number, max: number) =>
  z.string().regex(/^\d+$/, 'must be a whole number').transform(Number).pipe(z.int().min(min).max(max))

export const boolean = z
  .enum(['true', 'false'], { error: 'must be true or false' })
  .transform((value) => value === 'true')

const commaSeparated = (item: z.ZodType<string, string>) =>
  z
    .string()
    .transform((value) =>
      value
        .split(',')
        .map((part) => part.trim())
        .filter(Boolean),
    )
    .pipe(z.array(item))
export const origins = commaSeparated(
  z
    .string()
    .refine(
      (origin) =>
        origin === '*' || (/^https?:[^*]+$/.test(origin) && URL.canParse(origin) && new URL(origin).origin === origin),
      {
        error: ({ input }) =>
          `'${input}' is neither * nor an origin such as https://app.example.com (no path, no slash at its end)`,
      },
    ),
)
export const emailDomains = commaSeparated(
  z
    .string()
    .refine((domain) => domain === 'off' || /^(?!-)[a-z\d-]+(\.[a-z\d-]+)+$/i.test(domain), {
      error: ({ input }) => `'${input}' is neither off nor an email domain such as example.com`,
    }),
)
  .refine((all) => all.length === 1 || !all.includes('off'), 'off stands alone')
  .transform((all): readonly string[] => all.filter((domain) => domain !== 'off').map((domain) => domain.toLowerCase()))
export const networks = commaSeparated(
  z
    .string()
    .refine(isNetwork, {
      error: ({ input }) => `'${input}' is neither an address nor a network such as 10.0.0.0/8 or fd00::/8`,
    }),
)
export const nameMap = commaSeparated(
  z
    .string()
    .refine((pair) => /^[^\s=/][^\s=]*=[^\s=]+$/.test(pair), {
      error: ({ input }) => `'${input}' is not NAME=MODEL, such as gpt-4o-mini=HuggingFaceTB/SmolLM2-135M-Instruct`,
    }),
).transform((pairs): ReadonlyMap<string, string> => new Map(pairs.map((pair) => pair.split('=') as [string, string])))
export const storageUrl = text.superRefine((value, context) => {
  try {
    parseStorageUrl(value)
  } catch (error) {
    context.addIssue({ code: 'custom', message: (error as Error).message })
  }
})
export const gpuKinds = commaSeparated(
  z
    .string()
    .refine((pair) => /^[\w.-]+=[1-9]\d{2,6}$/.test(pair), {
      error: ({ input }) => `'${input}' is not TYPE=MB, such as H100=80000`,
    }),
).transform((pairs) =>
  pairs.map((pair) => {
    const [type, memory_mb] = pair.split('=') as [string, string]
    return { type, memory_mb: Number(memory_mb) }
  }),
)
const deviceName = /^(\d{1,3}|(GPU|MIG)-[\w/-]+|cpu\d{0,3})$/
export const trainingDevices = commaSeparated(
  z
    .string()
    .refine((item) => deviceName.test(item.split('=')[0]!) && /^[^=]+(=\d+)?$/.test(item), {
      error: ({ input }) =>
        `'${input}' is not a GPU's number or UUID, or cpu0, with =MB behind it or not, such as 1 or 0=40000`,
    })
    .refine((item) => /^[^=]+(=0*[1-9]\d{2,6})?$/.test(item), {
      error: ({ input }) => `'${input}': the memory behind = is in MB, from 100 to 9999999`,
    }),
)
  .transform((items) =>
    items.map((item) => {
      const [name, memory_mb] = item.split('=') as [string, string | undefined]
      return { name, memory_mb: memory_mb === undefined ? null : Number(memory_mb) }
    }),
  )
  .refine((items) => new Set(items.map(({ name }) => name)).size === items.length, 'names a device twice')
  .refine(
    (items) => new Set(items.map(({ name }) => name.startsWith('cpu'))).size <= 1,
    'names GPUs and places on the cores: a training has one kind of device',
  )
/** Words as in a shell, kept as text. */
export const shellText = z.string().superRefine((value, context) => {
  try {
    shellWords(value)
  } catch (error) {
    context.addIssue({ code: 'custom', message: (error as Error).message })
  }
})
export const jsonObject = text.transform((value, context): Record<string, unknown> => {
  try {
    return z.record(z.string(), z.unknown()).parse(JSON.parse(value))
  } catch {
    context.addIssue({ code: 'custom', message: `'${value}' is not a JSON object` })
    return z.NEVER
  }
})
export const redisUrl = z
  .string()
  .refine(isRedisUrl, {
    error:
      'must be redis://[user:password@]host[:port][/number], or rediss:// with TLS, with ?prefix=NAME at most behind ' +
      'it; write special characters of a password as %XX',
  })
function isRedisUrl(text: string): boolean {
  if (!URL.canParse(text)) return false
  const { protocol, hostname, pathname, searchParams, hash } = new URL(text)
  return (
    /^rediss?:$/.test(protocol) &&
    hostname !== '' &&
    /^(\/\d{0,5})?$/.test(pathname) &&
    hash === '' &&
    [...searchParams].every(([name, value]) => name === 'prefix' && /^[\w:.-]{1,100}$/.test(value))
  )
}
export interface Setting {
  schema: z.ZodType
  default: string | undefined
  /** The default in words, if it depends on the machine. */
  default_text?: string
  about: string
}
export const setting = <S extends z.ZodType>(schema: S, fallback: string, about: string) => ({
  schema,
  default: fallback,
  about,
})
/** A setting whose default depends on the machine, as `default_text` describes. */
export const computed = <S extends z.ZodType>(schema: S, fallback: string, default_text: string, about: string) => ({
  schema,
  default: fallback,
  default_text,
  about,
})
export const optional = <S extends z.ZodType>(schema: S, about: string) => ({
  schema: schema.optional(),
  default: undefined,
  about,
})
