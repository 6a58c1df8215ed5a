/* commands.h - the subcommands: each takes its own arguments, argv[0] being its name, and returns the exit status. */
#ifndef MS_CLI_COMMANDS_H
#define MS_CLI_COMMANDS_H

int ms_command_train(int argc, char **argv);
int ms_command_generate(int argc, char **argv);
int ms_command_eval(int argc, char **argv);
int ms_command_data(int argc, char **argv);
int ms_command_tokenizer(int argc, char **argv);
int ms_command_checkpoint(int argc, char **argv);
int ms_command_bench(int argc, char **argv);
int ms_command_help(int argc, char **argv);
int ms_command_version(int argc, char **argv);

/* The list of commands, to stdout. */
void ms_cli_print_commands(void);

#endif
