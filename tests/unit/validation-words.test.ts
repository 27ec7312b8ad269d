// What is wrong with a request is said in words that a form can show beside its field.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { z } from 'zod'
import { validationError } from '../../server/platform/http/validation.ts'

const schema = z.strictObject({
  name: z.string().min(1).max(200),
  note: z.string().min(3),
  email: z.email(),
  url: z.url(),
  epochs: z.int().min(1).max(50),
  rate: z.number().gt(0).lte(0.1),
  method: z.enum(['lora', 'full']),
  rows: z.array(z.string()).max(2),
  fixed: z.literal('yes'),
  bias: z.record(z.string().regex(/^\d+$/, 'must be the number of a token'), z.number()),
  own: z.string().refine((text) => text === 'x', 'must be x, as the guide says'),
})
const good = {
  name: 'a',
  note: 'abc',
  email: 'a@example.com',
  url: 'https://example.com',
  epochs: 1,
  rate: 0.1,
  method: 'lora',
  rows: [],
  fixed: 'yes',
  bias: { 1: 1 },
  own: 'x',
}

test('a validator speaks as people do, and keeps the words that a schema has chosen', () => {
  const says = (values: object) => {
    const { error } = schema.safeParse({ ...good, ...values })
    return validationError(error!.issues, 'body', schema).message
  }
  for (const [values, message] of [
    [{ name: 'x'.repeat(201) }, "'name': must have at most 200 characters."],
    [{ name: '' }, "'name': must not be empty."],
    [{ note: 'a' }, "'note': must have at least 3 characters."],
    [{ email: 'nobody' }, "'email': must be an email address."],
    [{ url: 'nowhere' }, "'url': must be a URL."],
    [{ epochs: 51 }, "'epochs': must be at most 50."],
    [{ epochs: 1.5 }, "'epochs': must be a whole number."],
    [{ epochs: 'abc' }, "'epochs': must be a number."],
    [{ rate: 0 }, "'rate': must be more than 0."],
    [{ method: 'qlora' }, "'method': must be one of lora, full."],
    [{ rows: ['a', 'b', 'c'] }, "'rows': must have at most 2 entries."],
    [{ rows: 'a' }, "'rows': must be a list."],
    [{ name: undefined }, "'name': is missing."],
    [{ fixed: 'no' }, "'fixed': must be yes."],
    [{ bias: { a: 1 } }, "'bias.a': the key must be the number of a token."],
    [{ own: 'y' }, "'own': must be x, as the guide says."],
  ] as const)
    assert.equal(says(values), message)
})
