import { z } from 'zod'

/** Times are ISO 8601 strings on the wire, except in OpenAI's shapes, which use unix seconds. */
export const Time = z.iso.datetime()

export const ListQuery = z.strictObject({
  limit: z.coerce.number().int().min(1).max(100).default(20).describe('1 to 100.'),
  after: z.string().max(100).optional().describe('The id after which the page begins.'),
})
export type ListQuery = z.infer<typeof ListQuery>

export const page = <T extends z.ZodType>(item: T) => z.object({ items: z.array(item), has_more: z.boolean() })

export const Deleted = z.object({ id: z.string(), deleted: z.literal(true) })

export const Method = z.enum(['lora', 'qlora', 'full'])
export type Method = z.infer<typeof Method>
