import { z } from 'zod'

/** Times are ISO 8601 strings, except in OpenAI-compatible responses, which use unix seconds. */
export const Time = z.iso.datetime()

/** What a base model is for. */
export const ModelCategory = z.enum(['language', 'code', 'multimodal', 'embedding'])

/** A whole number in a query, digits only: `Number` would also accept '' as 0 and `0x10` as 16. */
export const digits = (minimum: number, maximum = Number.MAX_SAFE_INTEGER) =>
  z
    .custom<string>(
      (input) => typeof input === 'string' && /^\d{1,16}$/.test(input),
      'must be a whole number in digits',
    )
    .transform(Number)
    .pipe(z.int().min(minimum).max(maximum))
    .meta({ type: 'integer', minimum, maximum })

// Control characters, lone surrogates and direction overrides.
const unsafe = '\\u0000-\\u001f\\u007f-\\u009f\\ud800-\\udfff\\u202a-\\u202e\\u2066-\\u2069'
const unsafeInText = unsafe.replace('\\u001f', '\\u0008\\u000b\\u000c\\u000e-\\u001f')

/** A text without the characters of `refused`, the inside of a regular expression's character class. */
function printable(text: z.ZodString, refused: string) {
  const first = new RegExp(`[${refused}]`, 'u')
  return text.regex(new RegExp(`^[^${refused}]*$`, 'u'), {
    error: ({ input }) => {
      const code = first
        .exec(input as string)![0]
        .codePointAt(0)!
        .toString(16)
        .toUpperCase()
        .padStart(4, '0')
      return `has the character U+${code}. Leave out control characters, lone surrogates and direction overrides`
    },
  })
}

const lineBreaks = '\\u2028\\u2029'
/** Something that is seen: no space, nothing of no width, no filler. */
const visible = /[^\p{Default_Ignorable_Code_Point}\p{Z}\p{Cc}\u2800]/u
/** A name of up to `length_max` characters, on one line, in the normal form, so that equal names are equal. */
const nameOf = (length_max: number) =>
  printable(z.string().trim().normalize('NFC').min(1).max(length_max), unsafe + lineBreaks).refine(
    (name) => visible.test(name),
    'has nothing that can be seen',
  )
/** A name, one line. */
export const DisplayName = nameOf(200)
/** A name of a part, one line. */
export const ShortName = nameOf(64)
/** A description; may have line breaks and tabs. */
export const Description = printable(z.string().max(2000), unsafeInText)

const MetadataKey = printable(z.string().min(1).max(64), unsafe)
const MetadataValue = printable(z.string().max(512), unsafeInText)
const depthMax = 100

/** Whether a value is nested in no more than `depthMax` lists and objects. */
function isShallow(value: unknown): boolean {
  let level: unknown[] = [value]
  for (let depth = 0; level.length > 0; depth++) {
    if (depth > depthMax) return false
    level = level.flatMap((value) => (typeof value === 'object' && value !== null ? Object.values(value) : []))
  }
  return true
}

/** Clients' own JSON. */
export const JsonObject = z
  .record(z.string(), z.unknown())
  .refine(isShallow, `is nested in more than ${depthMax} lists and objects`)

/** Clients' own key-value pairs. */
export const Metadata = z
  .record(MetadataKey, MetadataValue, {
    error: ({ code }) =>
      code === 'invalid_key' ? 'has a key that is not 1 to 64 characters that can be shown' : undefined,
  })
  .refine((pairs) => Object.keys(pairs).length <= 16, 'has more than 16 pairs')
  .meta({ maxProperties: 16 })
  .describe('Up to 16 pairs of your own: keys of up to 64 characters, values of up to 512.')
export type Metadata = z.infer<typeof Metadata>

/** Fields that can be changed at any time. Omitted ones stay. */
export const Labels = z.strictObject({
  name: DisplayName.optional(),
  description: Description.optional(),
  metadata: Metadata.optional().describe('All pairs: they replace those before.'),
})
export type Labels = z.infer<typeof Labels>

/** Turns a file name into a valid `DisplayName`; empty if nothing is left of it. */
export function asDisplayName(text: string): string {
  const name = text
    .replace(new RegExp(`[${unsafe}${lineBreaks}]`, 'gu'), '')
    .normalize('NFC')
    .trim()
    .slice(0, 200)
    .replace(/[\ud800-\udbff]$/, '')
    .trim()
  return visible.test(name) ? name : ''
}

export const ListQuery = z.strictObject({
  limit: digits(1, 100)
    .default(20)
    .describe('1 to 100. Default 20. A page of large items has fewer: about 8 MB at most.'),
  after: z.string().max(100).optional().describe('The id after which the page begins.'),
})
export type ListQuery = z.infer<typeof ListQuery>

export const RowsQuery = z.strictObject({
  limit: ListQuery.shape.limit,
  after: digits(1).optional().describe('The row after which the page begins.'),
})

/** Query of a list with time filters and a sort direction. */
export const TimedQuery = ListQuery.extend({
  created_after: Time.optional().describe('Those created later than this.'),
  created_before: Time.optional().describe('Those created earlier than this.'),
  order: z.enum(['asc', 'desc']).optional().describe('Default: newest first.'),
})
export type TimedQuery = z.infer<typeof TimedQuery>

/** Query of a list with name and time filters, and sorting. */
export const SortedQuery = TimedQuery.extend({
  name: z
    .string()
    .min(1)
    .max(200)
    .optional()
    .describe('Those with this text in their name. ASCII letters match in either case.'),
  sort: z.enum(['created_at', 'name']).default('created_at').describe('Default created_at.'),
  order: z.enum(['asc', 'desc']).optional().describe('Default: newest first by created_at, asc by name.'),
})
export type SortedQuery = z.infer<typeof SortedQuery>

export const page = <T extends z.ZodType>(item: T) => z.object({ items: z.array(item), has_more: z.boolean() })

/** A numbered event of a job or an export. */
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
