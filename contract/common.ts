import { z } from 'zod'

/** Times are ISO 8601 strings on the wire, except in OpenAI's shapes, which use unix seconds. */
export const Time = z.iso.datetime()

/** A whole number in a query, in digits: `Number` would take nothing at all for 0, and `0x10` for 16. */
export const digits = (minimum: number, maximum = Number.MAX_SAFE_INTEGER) =>
  z
    .custom<string>((given) => typeof given === 'string' && /^\d{1,16}$/.test(given), 'must be a whole number in digits')
    .transform(Number)
    .pipe(z.int().min(minimum).max(maximum))
    .meta({ type: 'integer', minimum, maximum })

export const ListQuery = z.strictObject({
  limit: digits(1, 100).default(20).describe('1 to 100. Default 20.'),
  after: z.string().max(100).optional().describe('The id after which the page begins.'),
})
export type ListQuery = z.infer<typeof ListQuery>

export const page = <T extends z.ZodType>(item: T) => z.object({ items: z.array(item), has_more: z.boolean() })

/** One of the numbered events of a job or an export. */
export const eventOf = <const T extends readonly [string, ...string[]]>(types: T) =>
  z.object({
    type: z.enum(types),
    message: z.string(),
    seq: z.int(),
    created_at: Time,
    data: z.record(z.string(), z.unknown()).optional(),
  })

export const Deleted = z.object({ id: z.string(), deleted: z.literal(true) })

export const Method = z.enum(['lora', 'qlora', 'full'])
export type Method = z.infer<typeof Method>
