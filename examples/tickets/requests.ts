// Requests in support tickets. {p} is the product; {n}, {few}, {hour}, {money}, {day}, {version} and {code} are filled
// at random. Each class has many phrasings, so that no single word reveals it.

export const products = {
  notes: ['Notes', 'Notes', 'the Notes app', 'your note-taking app', 'the notebook editor'],
  sync: ['Sync', 'Sync', 'the Sync client', 'your file syncing tool', 'the folder synchroniser'],
  mail: ['Mail', 'Mail', 'the Mail app', 'your email client', 'the mailbox app'],
  vault: ['Vault', 'Vault', 'the Vault extension', 'your password manager', 'the password safe'],
}

export const requests = {
  // Money: charges, refunds, invoices, prices, plans.
  billing: [
    'I was charged {money} twice for {p} this month.',
    'My card shows {money} for {p}, but we agreed on less.',
    'Where is the refund for {p} that you promised on {day}?',
    'The invoice for {p} has the wrong VAT number on it.',
    'Please move our {p} plan from monthly to yearly payment.',
    'The discount code {code} was not applied when I bought {p}.',
    'I want my money back for {p}, I bought it by mistake.',
    'Why did the price of {p} on my statement go up to {money}?',
    'The new credit card for {p} is not accepted at checkout.',
    'I upgraded {p} on {day} and was billed for both plans.',
  ],
  // Something does not work.
  bug: [
    '{p} crashes every time I open a large document.',
    'Since version {version} {p} freezes after a few minutes.',
    '{p} shows error {code} and closes itself.',
    'In {p} the save button does nothing at all.',
    'Every attachment in {p} comes out as an empty file.',
    '{p} duplicates everything I add, I now have {n} copies.',
    'The window of {p} stays black on my second screen.',
    '{p} hangs at {n} percent and never finishes.',
    'Pasting an image into {p} makes it quit without a word.',
    '{p} keeps throwing code {code} when I press print.',
  ],
  // Logging in: passwords, locked accounts, two-factor codes, invitations, permissions.
  access: [
    'I forgot my password for {p} and the reset mail never comes.',
    '{p} says my account is locked after {n} attempts.',
    'The two-factor code for {p} is rejected every time.',
    'I got a new phone and can no longer log in to {p}.',
    'Please give our new colleague access to {p}.',
    '{p} signs me out and will not let me back in.',
    'Our admin left and nobody here has rights to manage {p} now.',
    'I lost the recovery codes for {p} and am shut out.',
    'The link to set my {p} password is no longer valid.',
    'My user in {p} has been suspended and I do not know why.',
  ],
  // A request for a missing feature.
  feature: [
    'It would be great if {p} had a calendar view.',
    'Please add offline mode to {p}.',
    'I wish {p} could export to spreadsheet format.',
    'Any chance of a Linux version of {p}?',
    'We would love to see tags in {p}.',
    'What {p} lacks is a widget for the home screen.',
    'Have you considered adding templates to {p}?',
    'I would pay extra for {p} in Portuguese.',
    'Our team votes for a dark theme in {p}.',
    'A bulk rename would make {p} perfect for us.',
  ],
  // How to use an existing feature, or what the product can do.
  question: [
    'How do I import my old data into {p}?',
    'Where in {p} can I change the language?',
    'Does {p} work on a tablet as well?',
    'How can I turn off notifications in {p}?',
    'Is there a manual for {p} that I can print?',
    'Which browsers does {p} support?',
    'I am new to {p}: how are items sorted?',
    'How long does {p} keep deleted items?',
    'In what country are the servers of {p}?',
    'What do the little green dots in {p} mean?',
  ],
}
