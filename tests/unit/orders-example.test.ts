// The example's orders (examples/orders): the same for a seed, each text once, with answers in one form that the text
// decides.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { answeredRows, gradedRows, orders } from '../../examples/orders/orders.ts'

test('orders follow from the seed, and no text of the rows to learn from is held out', () => {
  const all = orders(540, 7)
  assert.deepEqual(orders(540, 7), all)
  assert.notDeepEqual(orders(540, 8), all)
  assert.equal(new Set(all.map(({ text }) => text)).size, 540)
})

test('an answer has the date and the amount of its text', () => {
  const known = new Map(orders(2000, 1).map(({ text, answer }) => [text, answer]))
  for (const [text, answer] of known) {
    assert.match(answer, /^20\d\d-[01]\d-[0-3]\d [1-9]\d* (g|ml)$/, text)
    const [, year, day] = /^20(\d\d)-\d\d-(\d\d)/.exec(answer)!
    // What the text has of the date: its year's last digits and its day.
    assert.ok(text.includes(year!), `${text} has the year of ${answer}`)
    assert.ok(text.includes(String(Number(day))), `${text} has the day of ${answer}`)
    assert.equal(/\b(g|kg|kilos?|kilograms?)\b/.test(text), answer.endsWith(' g'), `${text} is weighed: ${answer}`)
  }
})

test('amounts become grams and millilitres', () => {
  const all = orders(8000, 2)
  const amountOf = (written: RegExp) => {
    const { text, answer } = all.find(({ text }) => written.test(text))!
    return {
      number: Number(/(\d+)[.,](\d) /.exec(text)?.slice(1).join('')),
      amount: answer.split(' ').slice(1).join(' '),
    }
  }
  const decimal = amountOf(/\d[.,]\d (kg|kilos|kilograms)/)
  assert.equal(decimal.amount, `${decimal.number * 100} g`)
  assert.equal(amountOf(/\b640 ml/).amount, '640 ml')
  assert.equal(amountOf(/\b90 liters/).amount, '90000 ml')
  assert.equal(amountOf(/\ba quarter of a kilo\b/i).amount, '250 g')
  assert.equal(amountOf(/three quarters of a litre/).amount, '750 ml')
  assert.equal(amountOf(/three and a half kilos/).amount, '3500 g')
})

test('prompts that are graded have no answer among their messages', () => {
  const [order] = orders(1, 3)
  assert.deepEqual(gradedRows([order!]), [
    { messages: [{ role: 'user', content: order!.text }], answer: order!.answer },
  ])
  assert.equal(answeredRows([order!])[0]!.messages[1]!.content, order!.answer)
})
