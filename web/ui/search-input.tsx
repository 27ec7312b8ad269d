import { Search } from 'lucide-react'
import { useEffect, useRef, useState } from 'react'
import { classes } from '../lib/classes.ts'
import { afterTyping } from '../lib/typing.ts'
import { Input } from './field.tsx'

/** What a list is searched for. The page's address has it, once the typing pauses; no letter waits for that. */
export function SearchInput({
  value = '',
  onChange,
  label = 'Search by name',
  className,
}: {
  value: string | undefined
  onChange: (value: string | undefined) => void
  label?: string
  className?: string
}) {
  const [typed, setTyped] = useState(value)
  /** The last that came from here or from outside. */
  const known = useRef(value)
  useEffect(() => {
    if (value === known.current) return
    known.current = value
    setTyped(value)
  }, [value])
  // biome-ignore lint/correctness/useExhaustiveDependencies: `onChange` is made again at each render
  useEffect(() => {
    const next = typed.trim()
    if (next === known.current) return
    return afterTyping(() => {
      known.current = next
      onChange(next || undefined)
    })
  }, [typed])
  return (
    <div className={classes('relative max-w-full', className)}>
      <Search
        aria-hidden
        className="pointer-events-none absolute top-1/2 left-2.5 size-4 -translate-y-1/2 text-muted"
      />
      <Input
        type="search"
        aria-label={label}
        placeholder={label}
        className="pl-8!"
        value={typed}
        maxLength={200}
        onChange={({ target }) => setTyped(target.value)}
      />
    </div>
  )
}
