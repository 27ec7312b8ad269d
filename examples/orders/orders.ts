// Orders as people write them, and the one form that they are to have: `2026-03-07 12500 g`. Dates are written in ten
// ways, amounts in six; kilograms and litres become grams and millilitres.
import { Random } from '../tickets/random.ts'

const months = [
  'January',
  'February',
  'March',
  'April',
  'May',
  'June',
  'July',
  'August',
  'September',
  'October',
  'November',
  'December',
]
const solids = ['flour', 'rice', 'sand', 'coffee', 'salt', 'cement', 'sugar', 'gravel']
const liquids = ['oil', 'water', 'paint', 'milk', 'vinegar', 'syrup', 'petrol', 'glue']
type Names = readonly (readonly [singular: string, plural: string])[]
const kilograms: Names = [
  ['kilo', 'kilos'],
  ['kilogram', 'kilograms'],
  ['kg', 'kg'],
]
const litres: Names = [
  ['litre', 'litres'],
  ['liter', 'liters'],
  ['litre', 'l'],
]
const texts = [
  'On {date} we need {amount} of {thing}.',
  '{amount} of {thing}, {date}',
  'Send {amount} of {thing} by {date}.',
  '{date}: {thing}, {amount}',
  'Order: {thing} ({amount}) for {date}',
  'Could we have {amount} of {thing} on {date}?',
]

export interface Order {
  text: string
  answer: string
}

const ones = ['one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine', 'ten', 'eleven', 'twelve']
/** What a part is called, and how many grams or millilitres it has. */
const parts = [
  ['half a', 500],
  ['a quarter of a', 250],
  ['three quarters of a', 750],
] as const

const ordinal = (day: number) => `${day}${day > 10 && day < 14 ? 'th' : (['th', 'st', 'nd', 'rd'][day % 10] ?? 'th')}`
const two = (value: number) => String(value).padStart(2, '0')

function dateOf(random: Random): { written: string; answer: string } {
  const [year, month, day] = [random.between(2019, 2031), random.between(1, 12), random.between(1, 28)]
  const name = months[month - 1]!
  const short = name.slice(0, 3)
  const written = random.pick([
    `${day} ${name} ${year}`,
    `${name} ${day}, ${year}`,
    `${two(day)}.${two(month)}.${year}`,
    `${short} ${day} ${year}`,
    `${day}/${short}/${year}`,
    `${year}/${month}/${day}`,
    `${day} ${short} '${two(year % 100)}`,
    `${ordinal(day)} of ${name} ${year}`,
    `${name} the ${ordinal(day)}, ${year}`,
    `${day}.${month}.${two(year % 100)}`,
  ])
  return { written, answer: `${year}-${two(month)}-${two(day)}` }
}

function amountOf(random: Random): { written: string; answer: string; thing: string } {
  const solid = random.chance(0.5)
  const thing = random.pick(solid ? solids : liquids)
  const [singular, plural] = random.pick(solid ? kilograms : litres)
  const small = solid ? 'g' : 'ml'
  const of = (written: string, amount: number) => ({ written, answer: `${amount} ${small}`, thing })
  const [whole, tenth, few] = [random.between(2, 90), random.between(1, 9), random.between(2, 12)]
  const [part, share] = random.pick(parts)
  return random.pick([
    () => of(`${whole} ${plural}`, whole * 1000),
    () => of(`${whole}${random.pick(['.', ','])}${tenth} ${plural}`, whole * 1000 + tenth * 100),
    () => of(`${whole * 10} ${small}`, whole * 10),
    () => of(`${ones[few - 1]} ${plural}`, few * 1000),
    () => of(`${ones[few - 1]} and a half ${plural}`, few * 1000 + 500),
    () => of(`${part} ${singular}`, share),
  ])()
}

/** `count` orders with different texts. */
export function orders(count: number, seed: number): Order[] {
  const random = new Random(seed)
  const made = new Map<string, Order>()
  while (made.size < count) {
    const [date, amount] = [dateOf(random), amountOf(random)]
    const text = random
      .pick(texts)
      .replace('{date}', date.written)
      .replace('{amount}', amount.written)
      .replace('{thing}', amount.thing)
    made.set(text, { text, answer: `${date.answer} ${amount.answer}` })
  }
  return [...made.values()]
}

/** Rows for supervised training. */
export const answeredRows = (all: readonly Order[]) =>
  all.map(({ text, answer }) => ({
    messages: [
      { role: 'user', content: text },
      { role: 'assistant', content: answer },
    ],
  }))

/** Prompts with the field that the grader reads. */
export const gradedRows = (all: readonly Order[]) =>
  all.map(({ text, answer }) => ({ messages: [{ role: 'user', content: text }], answer }))

/** Whether an answer is exactly right. */
export const grader = {
  type: 'string_check',
  name: 'exact',
  input: '{{sample.output_text}}',
  reference: '{{item.answer}}',
  operation: 'eq',
} as const
